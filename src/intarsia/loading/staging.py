"""Bringing bytes of a checkpoint to a device: into CPU tensors directly, to a GPU through pinned memory."""

import os
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

import torch

from intarsia.checkpoint import Reader, TensorEntry
from intarsia.checkpoint.errors import RangeError
from intarsia.kernels.scatter import scatters
from intarsia.loading.ahead import LONG, Ahead
from intarsia.loading.asks import Ask
from intarsia.loading.blocks import Integers
from intarsia.loading.layout import Region
from intarsia.loading.ring import ring_bytes

PINNED_BYTES = 16 << 20
BAND_BYTES = 16 << 20
"""Of a matrix that is cut by columns, as much is read at a time."""


MOST_THREADS = 12
"""Threads that read: together they read from the page cache nearly as fast as a GPU's link takes it."""


def reading_threads() -> int:
    """Threads to read with: all processors but the one that tells the GPU what to do, up to twelve."""
    return max(1, min(MOST_THREADS, len(os.sched_getaffinity(0)) - 1))


def pinned_bytes(device: torch.device | str) -> int:
    """Host memory that filling tensors on a device takes at most."""
    return 2 * PINNED_BYTES + ring_bytes(reading_threads()) if torch.device(device).type == "cuda" else 0


class Staging:
    """Fills tensors on one device from a reader.

    For a GPU there are two pinned buffers: one is read into while the other is on its way. After `read_ahead`
    bytes come out of a ring that threads fill, as long as they are asked for in the order that was said.
    Buffers are this object's own and nobody else's; a tensor that was filled shares no memory with them.
    """

    def __init__(self, reader: Reader, device: torch.device) -> None:
        self.reader = reader
        self.device = device
        self._buffers: list[torch.Tensor] = []
        self._free: list[Any] = []
        self._turn = 0
        self._twins: list[Reader] = []
        self.ahead: Ahead | None = None

    def __enter__(self) -> "Staging":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.ahead is not None:
            self.ahead.close()
        for twin in self._twins:
            twin.close()

    @property
    def nbytes(self) -> int:
        """Host memory that this holds now."""
        ring = self.ahead.nbytes if self.ahead is not None else 0
        return ring + sum(buffer.nbytes for buffer in self._buffers)

    def read_ahead(self, asks: Iterable[Ask], threads: int | None = None) -> None:
        """Begins to read what will be asked for. Use the staging as a context, which ends the reading."""
        self._twins = [self.reader.twin() for _ in range(threads or reading_threads())]
        self.ahead = Ahead(self._twins, self.device, asks)

    @property
    def delivers(self) -> bool:
        """Whether thousands of spans are better delivered than filled one by one."""
        return self.ahead is not None or scatters(self.device)

    def deliver(self, ask: Ask, targets: Callable[[], Integers]) -> None:
        """Brings the spans of an ask to addresses on the device, one a span, which are there after `flush`.

        Out of the ring if it comes next there, else out of a ring that lasts as long as this takes.
        """
        self._served(ask, lambda ring: ring.deliver(targets))

    def bring(self, ask: Ask, whole: torch.Tensor) -> None:
        """Fills the contiguous `whole` with the spans of an ask, one after another; filled after `flush`."""
        flat = whole.view(-1).view(torch.uint8)
        begins = ask.lengths.cumsum() - ask.lengths
        if int(ask.lengths.sum()) != flat.numel():
            raise RangeError(
                ask.entries[0].name,
                found=f"a destination of {flat.numel()} bytes",
                expected=f"{ask.lengths.sum()} bytes",
            )
        if len(begins) * LONG > flat.numel():
            self.deliver(ask, lambda: flat.data_ptr() + begins)
        else:
            self._served(ask, lambda ring: ring.bring(flat, begins))

    def _served(self, ask: Ask, serve: Callable[[Ahead], None]) -> None:
        if self.ahead is not None and self.ahead.serves(ask):
            serve(self.ahead)
            return
        ring = Ahead([self.reader], self.device, [ask])
        try:
            if ring.serves(ask):  # it does not where no span has bytes
                serve(ring)
                ring.require_unchanged()
        finally:
            ring.close()

    def fill(self, entry: TensorEntry, target: torch.Tensor, begin: int = 0, *, later: bool = False) -> None:
        """Bytes of an entry from `begin` on, as many as the contiguous `target` has.

        `later`: they need not be there before `flush`.
        """
        if self.ahead is not None and self.ahead.take(entry, begin, target, later=later):
            return
        if target.device.type != "cuda":
            self.reader.read_into(entry, target, begin, begin + target.nbytes)
            return
        if not self._buffers:
            self._buffers = [torch.empty(PINNED_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
            self._free = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]
        flat = target.view(-1).view(torch.uint8)
        for start in range(0, flat.numel(), PINNED_BYTES):
            part = flat[start : start + PINNED_BYTES]
            self._turn ^= 1
            self._free[self._turn].synchronize()
            pinned = self._buffers[self._turn][: part.numel()]
            self.reader.read_into(entry, pinned, begin + start, begin + start + part.numel())
            part.copy_(pinned, non_blocking=True)
            self._free[self._turn].record(torch.cuda.current_stream(self.device))

    def require_unchanged(self) -> None:
        """Raises ChangedError if what was read ahead is to be thrown away: a file is not the one it was."""
        if self.ahead is not None:
            self.ahead.require_unchanged()

    def flush(self) -> None:
        """Sends what was filled `later` on its way, in order with what the device is told next."""
        if self.ahead is not None:
            self.ahead.flush()

    def fill_region(self, entry: TensorEntry, target: torch.Tensor, region: Region | None) -> None:
        """A part of an entry, or all of it; it is there after `flush`.

        Whole rows are read by themselves; of cut rows all is read, some rows at a time.
        """
        if region is None or not region.counts:
            self.fill(entry, target, later=True)
            return
        starts, counts = region.starts, region.counts
        row = entry.nbytes // entry.shape[0]
        if target.nbytes == row * counts[0]:
            self.fill(entry, target, starts[0] * row, later=True)
            return
        band = max(1, BAND_BYTES // row)
        for first in range(starts[0], starts[0] + counts[0], band):
            rows = range(first, min(first + band, starts[0] + counts[0]))
            part = self.rows(entry, first, len(rows), target.dtype)
            target[first - starts[0] : rows.stop - starts[0]].copy_(part[region.inside(rows)])

    def rows(self, entry: TensorEntry, first: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Rows of an entry's first dimension, in memory of their own on the device."""
        part = torch.empty((count, *entry.shape[1:]), dtype=dtype, device=self.device)
        self.fill(entry, part, first * (entry.nbytes // entry.shape[0]))
        return part
