"""Reading ahead: threads read what will be asked for next while the device takes what was read before."""

import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch

from intarsia.checkpoint import Reader, TensorEntry
from intarsia.checkpoint.reader import LINE
from intarsia.kernels.scatter import CHUNK, scatter, scatters, table
from intarsia.loading.asks import Ask
from intarsia.loading.blocks import Cut, Integers, cut

BUFFER_BYTES = 16 << 20
"""A buffer of the ring: a block of bytes, and behind it the table of where those go."""
ROOM_ROWS = 2 * BUFFER_BYTES // CHUNK + 4096
BLOCK_BYTES = (BUFFER_BYTES - 24 * ROOM_ROWS) // LINE * LINE - LINE
BLOCKS_EACH = 2
"""Buffers a reader: one it fills, one that is on its way to the device."""


def ring_bytes(readers: int) -> int:
    """Memory of the ring of so many readers."""
    return readers * BLOCKS_EACH * BUFFER_BYTES


class Times:
    """Seconds: of the threads in reads and in waits for a free buffer, of the caller in waits for bytes, in
    deciding what goes where, and in sending it on its way."""

    def __init__(self) -> None:
        self.reading = self.no_buffer = 0.0
        self.no_bytes = self.planning = self.sending = 0.0


class _Read(NamedTuple):
    """Bytes `begin` to `end` of a shard's file, to a place in a buffer."""

    shard: str
    begin: int
    end: int
    place: int


class _Block(NamedTuple):
    """A block that is being read: its number, its buffer, and the reading."""

    number: int
    buffer: int
    done: Future[None]


class _Buffer:
    """Memory for one block and for the table of where it goes. Made where it is first used, by a reader."""

    def __init__(self, pinned: bool) -> None:
        whole = torch.empty(BUFFER_BYTES, dtype=torch.uint8, pin_memory=pinned)
        first = -whole.data_ptr() % LINE
        self.block = whole[first : first + BLOCK_BYTES]
        self.view = self.block.numpy().data
        behind = BUFFER_BYTES - 24 * ROOM_ROWS
        self.room = whole[behind:].view(torch.int64).view(-1, 3)


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Makes a GPU the current one of this thread: threads begin with the first."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


class Ahead:
    """Serves asks in order, out of a ring of buffers that threads fill. The ring is all it ever takes.

    Every reader is used by one thread at a time; one thread copies from the page cache at a fifth of what a
    GPU's link takes. For a GPU the buffers are pinned, each goes to the device in one copy, and one launch
    carries its bytes from there to where they stay: a copy for each of an expert's small tensors would keep
    the interpreter busy for longer than the bytes need. The caller waits for no copy, and calls `flush`
    before it uses what it took `later`. Close it: the threads end then.
    """

    def __init__(self, readers: Sequence[Reader], device: torch.device, asks: Iterable[Ask]) -> None:
        self.times = Times()
        self._device = device
        self._readers: queue.SimpleQueue[Reader] = queue.SimpleQueue()
        for reader in readers:
            self._readers.put(reader)
        self._pinned = device.type == "cuda"
        if str(device) == "cuda":
            self._device = torch.device("cuda", torch.cuda.current_device())
        count = BLOCKS_EACH * len(readers)
        self._buffers: list[_Buffer | None] = [None] * count
        self._copied: list[Any] = []
        if self._pinned:
            self._copied = [torch.cuda.Event() for _ in range(count)]  # type: ignore[no-untyped-call]
        self._carrier: torch.Tensor | None = None
        if self._pinned and scatters(device):
            self._carrier = torch.empty(BLOCK_BYTES, dtype=torch.uint8, device=device)
        self._asks = iter(asks)
        self._planned: deque[tuple[Ask, Cut, Integers]] = deque()
        self._shards: dict[str, int] = {}
        self._blocks = self._plan()
        # Of the ask that is being taken one by one: spans and pieces that are left, and where in both.
        self._at = self._position = self._used = 0
        self._pieces: deque[tuple[int, int, int]] | None = None
        self._block: _Block | None = None
        self._parts: list[tuple[int, int, int]] = []
        self._rows = 0
        self._coming: deque[_Block] = deque()
        self._pool = ThreadPoolExecutor(len(readers), thread_name_prefix="intarsia-read-ahead")
        for buffer in range(count):
            self._submit(buffer)

    @property
    def nbytes(self) -> int:
        """Bytes of the ring."""
        return len(self._buffers) * BUFFER_BYTES

    def left(self) -> int:
        """Bytes that were asked for and not taken. Nothing more is read after it: for the end of a load."""
        while next(self._blocks, None) is not None:
            pass
        left = sum(int(ask.lengths.sum()) for ask, _, _ in self._planned)
        if self._planned and self._pieces is not None:
            left -= int(self._planned[0][0].lengths[: self._at].sum()) + self._position
        return left

    def serves(self, ask: Ask) -> bool:
        """Whether this ask comes next."""
        return bool(self._planned) and self._planned[0][0] is ask

    def deliver(self, ask: Ask, targets: Callable[[], Integers]) -> None:
        """Carries the spans of the ask that comes next to addresses on the device, one a span; all are there
        after `flush`. Raises what reading them raised.
        """
        begin = perf_counter()
        _, (pieces, *_), order = self._planned[0]
        address = targets()[order][pieces.item] + pieces.offset
        rows, part = table(pieces.place, address, pieces.length)
        block = pieces.block[part]
        numbers = np.unique(block)
        bounds = [*np.searchsorted(block, numbers).tolist(), len(block)]
        self.times.planning += perf_counter() - begin
        for index, number in enumerate(numbers.tolist()):
            self._turn_to(number)
            self._send(rows[bounds[index] : bounds[index + 1]])
        self._planned.popleft()

    def take(self, entry: TensorEntry, begin: int, target: torch.Tensor, *, later: bool = False) -> bool:
        """Copies bytes into the contiguous `target` if they are the next ones; false if they are not.

        `later`: they need not be there before `flush`. Raises what reading them raised.
        """
        left = target.nbytes
        if not left:
            return True
        if not self._planned or self._planned[0][0].together:
            return False
        ask, (pieces, *_), _ = self._planned[0]
        first, length = int(ask.begins[self._at]), int(ask.lengths[self._at])
        last = first + length
        if (ask.entries[self._at].name, first + self._position) != (entry.name, begin) or begin + left > last:
            return False
        if self._pieces is None:
            self._pieces = deque(
                zip(pieces.block.tolist(), pieces.place.tolist(), pieces.length.tolist(), strict=True)
            )
        done = 0
        while done < left:
            block, place, count = self._pieces[0]
            self._turn_to(block)
            some = min(count - self._used, left - done)
            self._give(place + self._used, some, target, done)
            done += some
            self._used += some
            if self._used == count:
                self._pieces.popleft()
                self._used = 0
        if not later:
            self.flush()
        self._position += done
        if self._position == length:
            self._at, self._position = self._at + 1, 0
            if self._at == len(ask.entries):
                self._planned.popleft()
                self._at, self._pieces = 0, None
        return True

    def flush(self) -> None:
        """Sends what was taken `later` on its way, in order with what the device is told next."""
        if self._parts:
            place, address, count = np.array(self._parts, dtype=np.int64).T
            self._parts.clear()
            self._send(table(place, address, count)[0])

    def close(self) -> None:
        """Ends the threads and waits for copies that are under way."""
        self._pool.shutdown(cancel_futures=True)
        if self._copied:
            torch.cuda.synchronize(self._device)
        self._buffers.clear()

    def _give(self, place: int, count: int, target: torch.Tensor, done: int) -> None:
        if self._carrier is not None and target.is_cuda:
            self._parts.append((place, target.data_ptr() + done, count))
            return
        host = self._held().block[place : place + count]
        target.view(-1).view(torch.uint8)[done : done + count].copy_(host, non_blocking=True)

    def _send(self, rows: Integers) -> None:
        """Rows of a scatter's table for the block that is there. The kernel reads them beside the block."""
        begin = perf_counter()
        buffer = self._held()
        if self._carrier is None:
            scatter(buffer.block, rows)
        else:
            for first in range(0, len(rows), ROOM_ROWS):
                some = rows[first : first + ROOM_ROWS]
                if self._rows + len(some) > ROOM_ROWS:
                    torch.cuda.current_stream(self._device).synchronize()
                    self._rows = 0
                scatter(self._carrier, some, buffer.room[self._rows :])
                # Even, or the kernel would be compiled again for addresses that are no multiples of 16.
                self._rows += len(some) + len(some) % 2
        self.times.sending += perf_counter() - begin

    def _held(self) -> _Buffer:
        buffer = self._buffers[self._block.buffer] if self._block is not None else None
        if buffer is None:
            raise RuntimeError("bytes of a block that was not read")
        return buffer

    def _turn_to(self, number: int) -> None:
        """Makes a block the one that bytes come from; those before it go back to the readers."""
        while self._block is None or self._block.number < number:
            self._release()
            begin = perf_counter()
            # A block that could not be read stays the next one, and so its problem the answer.
            self._coming[0].done.result()
            ready = perf_counter()
            self._block = self._coming.popleft()
            self._rows = 0
            if self._carrier is not None:
                self._carrier.copy_(self._held().block, non_blocking=True)
            self.times.no_bytes += ready - begin
            self.times.sending += perf_counter() - ready

    def _release(self) -> None:
        if self._block is None:
            return
        self.flush()
        buffer, self._block = self._block.buffer, None
        if self._copied:
            self._copied[buffer].record(torch.cuda.current_stream(self._device))
        self._submit(buffer)

    def _submit(self, buffer: int) -> None:
        begin = perf_counter()
        block = next(self._blocks, None)
        self.times.planning += perf_counter() - begin
        if block is not None:
            number, reads = block
            self._coming.append(_Block(number, buffer, self._pool.submit(self._read, reads, buffer)))

    def _read(self, reads: Sequence[_Read], number: int) -> None:
        begin = perf_counter()
        buffer = self._buffers[number]
        if buffer is None:
            with on_device(self._device):
                buffer = self._buffers[number] = _Buffer(self._pinned)
        elif self._copied:
            self._copied[number].synchronize()
        ready = perf_counter()
        reader = self._readers.get()
        try:
            for shard, first, last, place in reads:
                reader.read_range(shard, first, last, buffer.view[place : place + last - first])
        finally:
            self._readers.put(reader)
        self.times.no_buffer += ready - begin
        self.times.reading += perf_counter() - ready

    def _plan(self) -> Iterator[tuple[int, list[_Read]]]:
        """What each block takes, in order; an ask is planned when its first block is wanted."""
        stop, number = 0, 0
        reads: list[_Read] = []
        for ask in self._asks:
            ranges, order = ask.ranges(self._shards)
            if not len(order):
                continue
            made = cut(ranges, BLOCK_BYTES, stop)
            stop = made.stop
            self._planned.append((ask, made, order))
            names = list(self._shards)
            parts, runs = made.reads, made.runs
            first = runs.begin[parts.item] + parts.offset
            for block, shard, begin, count, place in zip(
                parts.block.tolist(),
                runs.shard[parts.item].tolist(),
                first.tolist(),
                parts.length.tolist(),
                parts.place.tolist(),
                strict=True,
            ):
                if block > number and reads:
                    yield number, reads
                    reads = []
                number = block
                reads.append(_Read(names[shard], begin, begin + count, place))
        if reads:
            yield number, reads
