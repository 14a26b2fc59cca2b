"""Reading ahead: threads read what will be asked for next while the device takes what was read before."""

import queue
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import Any, NamedTuple

import torch

from intarsia.checkpoint import Reader, TensorEntry
from intarsia.checkpoint.reader import LINE, staging_view
from intarsia.kernels.scatter import Part, scatter, scatters

BLOCK_BYTES = 16 << 20
BLOCK_SPANS = 64
GAP = 512
"""Bytes between two spans that are read along with them, so that both take one call."""
BLOCKS_EACH = 2
"""Buffers a reader: one it fills, one that is on its way to the device."""


def ring_bytes(readers: int) -> int:
    """Memory of the ring of so many readers; every span begins where its bytes are read fastest."""
    return readers * BLOCKS_EACH * (BLOCK_BYTES + BLOCK_SPANS * (LINE + GAP))


class Span(NamedTuple):
    """Bytes `begin` to `end` of a stored tensor."""

    entry: TensorEntry
    begin: int
    end: int


Place = tuple[int, int]
"""Where the bytes of a span begin in a buffer, and how many they are."""


class _Block(NamedTuple):
    """Spans that are read into one buffer."""

    buffer: int
    places: Future[list[Place]]


class Times:
    """Seconds: of the threads in reads and in waits for a free buffer, of the caller in waits for bytes."""

    def __init__(self) -> None:
        self.reading = self.no_buffer = self.no_bytes = 0.0


class Ahead:
    """Serves `spans` in order, out of a ring of buffers that threads fill. The ring is all it ever takes.

    Every reader is used by one thread at a time; one thread copies from the page cache at a fifth of what a
    GPU's link takes. For a GPU the buffers are pinned, each goes to the device in one copy, and one launch
    carries its bytes from there to where they stay: a copy for each of an expert's small tensors would keep
    the interpreter busy for longer than the bytes need. The caller waits for no copy, and calls `flush`
    before it uses what it took `later`. Close it: the threads end then.
    """

    def __init__(self, readers: Sequence[Reader], device: torch.device, spans: Sequence[Span]) -> None:
        self.times = Times()
        self._device = device
        self._readers: queue.SimpleQueue[Reader] = queue.SimpleQueue()
        for reader in readers:
            self._readers.put(reader)
        pinned = device.type == "cuda"
        count = BLOCKS_EACH * len(readers)
        size = ring_bytes(len(readers)) // count
        self._buffers = [torch.empty(size, dtype=torch.uint8, pin_memory=pinned) for _ in range(count)]
        self._copied: list[Any] = []
        if pinned:
            self._copied = [torch.cuda.Event() for _ in range(count)]  # type: ignore[no-untyped-call]
        self._carrier = torch.empty(size, dtype=torch.uint8, device=device) if scatters(device) else None
        self._parts: list[Part] = []
        self._spans = [span for span in spans if span.begin < span.end]
        self._at, self._position = 0, self._spans[0].begin if self._spans else 0
        self._block: _Block | None = None
        self._places: deque[Place] = deque()
        self._used = 0
        self._batches = self._cut()
        self._coming: deque[_Block] = deque()
        self._pool = ThreadPoolExecutor(len(readers), thread_name_prefix="intarsia-read-ahead")
        for buffer in range(count):
            self._submit(buffer)

    @property
    def nbytes(self) -> int:
        """Bytes of the ring."""
        return sum(buffer.nbytes for buffer in self._buffers)

    @property
    def left(self) -> int:
        """Bytes of the spans that were not taken yet."""
        rest = self._spans[self._at :]
        return sum(span.end - span.begin for span in rest) - (self._position - rest[0].begin if rest else 0)

    def take(self, entry: TensorEntry, begin: int, target: torch.Tensor, *, later: bool = False) -> bool:
        """Copies bytes into the contiguous `target` if they are the next ones; false if they are not.

        `later`: they need not be there before `flush`. Raises what reading them raised.
        """
        left = target.nbytes
        if not left:
            return True
        if self._at == len(self._spans):
            return False
        span = self._spans[self._at]
        if (span.entry.name, self._position) != (entry.name, begin) or begin + left > span.end:
            return False
        done = 0
        while left:
            if not self._places:
                self._next()
            place, count = self._places[0]
            count = min(count - self._used, left)
            self._give(place + self._used, count, target, done)
            done += count
            left -= count
            self._used += count
            if self._used == self._places[0][1]:
                self._places.popleft()
                self._used = 0
                if not self._places:
                    self._release()
        if not later:
            self.flush()
        self._position += done
        if self._position == span.end:
            self._at += 1
            self._position = self._spans[self._at].begin if self._at < len(self._spans) else 0
        return True

    def flush(self) -> None:
        """Sends what was taken `later` on its way, in order with what the device is told next."""
        if self._carrier is not None:
            scatter(self._carrier, self._parts)
            self._parts.clear()

    def _give(self, place: int, count: int, target: torch.Tensor, done: int) -> None:
        if self._carrier is not None and target.is_cuda:
            self._parts.append((place, target.data_ptr() + done, count))
        elif self._block is not None:
            host = self._buffers[self._block.buffer][place : place + count]
            target.view(-1).view(torch.uint8)[done : done + count].copy_(host, non_blocking=True)

    def close(self) -> None:
        """Ends the threads and waits for copies that are under way."""
        self._pool.shutdown(cancel_futures=True)
        if self._copied:
            torch.cuda.synchronize(self._device)
        self._buffers.clear()

    def _next(self) -> None:
        begin = perf_counter()
        # A block that could not be read stays the next one, and so its problem the answer.
        self._places.extend(self._coming[0].places.result())
        self.times.no_bytes += perf_counter() - begin
        self._block = self._coming.popleft()
        if self._carrier is not None:
            end = max(place + count for place, count in self._places)
            self._carrier[:end].copy_(self._buffers[self._block.buffer][:end], non_blocking=True)

    def _release(self) -> None:
        if self._block is None:
            return
        self.flush()
        buffer, self._block = self._block.buffer, None
        if self._copied:
            self._copied[buffer].record(torch.cuda.current_stream(self._device))
        self._submit(buffer)

    def _submit(self, buffer: int) -> None:
        batch = next(self._batches, None)
        if batch is not None:
            self._coming.append(_Block(buffer, self._pool.submit(self._read, batch, buffer)))

    def _read(self, batch: Sequence[Span], buffer: int) -> list[Place]:
        begin = perf_counter()
        if self._copied:
            self._copied[buffer].synchronize()
        ready = perf_counter()
        reader = self._readers.get()
        try:
            places = _read_runs(reader, batch, self._buffers[buffer])
        finally:
            self._readers.put(reader)
        self.times.no_buffer += ready - begin
        self.times.reading += perf_counter() - ready
        return places

    def _cut(self) -> Iterator[list[Span]]:
        """What each buffer takes: many small spans, or a part of a large one."""
        batch: list[Span] = []
        room = BLOCK_BYTES
        for entry, begin, end in self._spans:
            first = begin
            while first < end:
                if not room or len(batch) == BLOCK_SPANS:
                    yield batch
                    batch, room = [], BLOCK_BYTES
                last = min(first + room, end)
                batch.append(Span(entry, first, last))
                room -= last - first
                first = last
        if batch:
            yield batch


def _read_runs(reader: Reader, batch: Sequence[Span], buffer: torch.Tensor) -> list[Place]:
    """Reads spans into a buffer, with one call for those that follow each other in a file.

    Experts have small tensors by the thousand, and every call takes the interpreter as long as copying a
    hundred kilobytes.
    """
    spans = [_in_file(span) for span in batch]
    order = sorted(range(len(batch)), key=spans.__getitem__)
    places: list[Place] = [(0, 0)] * len(batch)
    used = at = 0
    while at < len(order):
        shard, begin, end = spans[order[at]]
        run = []
        while at < len(order) and spans[order[at]][0] == shard and spans[order[at]][1] <= end + GAP:
            end = max(end, spans[order[at]][2])
            run.append(order[at])
            at += 1
        view = staging_view(buffer[used:], begin, end)
        reader.read_range(shard, begin, end, view)
        first = view.data_ptr() - buffer.data_ptr()
        for index in run:
            places[index] = (first + spans[index][1] - begin, spans[index][2] - spans[index][1])
        used = first + view.numel()
    return places


def _in_file(span: Span) -> tuple[str, int, int]:
    """The shard of a span, and its first byte and end in that file."""
    return span.entry.shard, span.entry.begin + span.begin, span.entry.begin + span.end
