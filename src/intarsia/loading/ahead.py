"""Reading ahead: a thread reads what will be asked for next while the device encodes what was read before."""

import queue
import threading
from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import torch

from intarsia.checkpoint import Reader, TensorEntry
from intarsia.checkpoint.reader import LINE, staging_view

BLOCK_BYTES = 8 << 20
BLOCKS = 4


class Span(NamedTuple):
    """Bytes `begin` to `end` of a stored tensor."""

    entry: TensorEntry
    begin: int
    end: int


class _Block(NamedTuple):
    """Bytes that were read, and the buffer they lie in; or what kept them from being read."""

    buffer: int
    data: torch.Tensor
    problem: BaseException | None = None


class Times:
    """Seconds: of the thread in reads and in waits for a free buffer, of the caller in waits for bytes."""

    def __init__(self) -> None:
        self.reading = self.no_buffer = self.no_bytes = 0.0


class Ahead:
    """Serves `spans` in order, out of a ring of buffers that a thread fills. The ring is all it ever takes.

    For a GPU the buffers are pinned, and one is filled again when the copies out of it are done; the caller
    waits for no copy. `reading` is the lock under which the reader is used. Close it: the thread ends then.
    """

    def __init__(
        self, reader: Reader, reading: threading.Lock, device: torch.device, spans: Sequence[Span]
    ) -> None:
        self.times = Times()
        self._reader, self._reading, self._device = reader, reading, device
        pinned = device.type == "cuda"
        self._buffers = [
            torch.empty(BLOCK_BYTES + LINE - 1, dtype=torch.uint8, pin_memory=pinned) for _ in range(BLOCKS)
        ]
        self._copied: list[Any] = []
        if pinned:
            self._copied = [torch.cuda.Event() for _ in range(BLOCKS)]  # type: ignore[no-untyped-call]
        self._free: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._full: queue.SimpleQueue[_Block] = queue.SimpleQueue()
        for index in range(BLOCKS):
            self._free.put(index)
        self._spans = [span for span in spans if span.begin < span.end]
        self._at, self._position = 0, self._spans[0].begin if self._spans else 0
        self._block: _Block | None = None
        self._used = 0
        self._thread = threading.Thread(target=self._run, name="intarsia-read-ahead", daemon=True)
        self._thread.start()

    @property
    def left(self) -> int:
        """Bytes of the spans that were not taken yet."""
        rest = self._spans[self._at :]
        return sum(span.end - span.begin for span in rest) - (self._position - rest[0].begin if rest else 0)

    def take(self, entry: TensorEntry, begin: int, target: torch.Tensor) -> bool:
        """Copies bytes into `target`, flat uint8, if they are the next ones; false if they are not.

        Raises what reading them raised.
        """
        if not target.numel():
            return True
        if self._at == len(self._spans):
            return False
        span = self._spans[self._at]
        if (span.entry.name, self._position) != (entry.name, begin) or begin + target.numel() > span.end:
            return False
        done = 0
        while done < target.numel():
            block = self._block or self._next()
            part = block.data[self._used : self._used + target.numel() - done]
            target[done : done + part.numel()].copy_(part, non_blocking=True)
            done += part.numel()
            self._used += part.numel()
            if self._used == block.data.numel():
                self._release(block)
        self._position += done
        if self._position == span.end:
            self._at += 1
            self._position = self._spans[self._at].begin if self._at < len(self._spans) else 0
        return True

    def close(self) -> None:
        """Ends the thread and waits for copies that are under way."""
        self._free.put(None)
        self._thread.join()
        if self._copied:
            torch.cuda.synchronize(self._device)
        self._buffers.clear()

    def _next(self) -> _Block:
        begin = perf_counter()
        block = self._full.get()
        self.times.no_bytes += perf_counter() - begin
        if block.problem is not None:
            self._full.put(block)  # it stays the answer
            raise block.problem
        self._block, self._used = block, 0
        return block

    def _release(self, block: _Block) -> None:
        self._block = None
        if self._copied:
            self._copied[block.buffer].record(torch.cuda.current_stream(self._device))
        self._free.put(block.buffer)

    def _run(self) -> None:
        try:
            for span in self._pieces():
                begin = perf_counter()
                buffer = self._free.get()
                if buffer is None:
                    return
                if self._copied:
                    self._copied[buffer].synchronize()
                self.times.no_buffer += perf_counter() - begin
                self._full.put(_Block(buffer, self._read(span, buffer)))
        except BaseException as problem:  # raised where the bytes are asked for
            self._full.put(_Block(-1, torch.empty(0), problem))

    def _read(self, span: Span, buffer: int) -> torch.Tensor:
        begin = perf_counter()
        view = staging_view(self._buffers[buffer], *span)
        with self._reading:
            self._reader.read_into(span.entry, view, span.begin, span.end)
        self.times.reading += perf_counter() - begin
        return view

    def _pieces(self) -> Iterator[Span]:
        for entry, begin, end in self._spans:
            for first in range(begin, end, BLOCK_BYTES):
                yield Span(entry, first, min(first + BLOCK_BYTES, end))
