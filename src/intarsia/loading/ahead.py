"""Reading ahead: threads read what will be asked for next while the device takes what was read before."""

import queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from threading import Thread
from time import perf_counter
from typing import Any

import numpy as np
import torch

from intarsia.checkpoint import Reader, TensorEntry
from intarsia.kernels.scatter import scatter, scatters, table
from intarsia.loading import ring
from intarsia.loading.asks import Ask
from intarsia.loading.blocks import Cut, Integers, cut
from intarsia.loading.ring import Block, Buffer, Read, Times, on_device

LONG = 1 << 18
"""Bytes that are worth a copy of their own where they are taken one by one."""


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
        self._readers = readers
        self._device = device
        self._pinned = device.type == "cuda"
        if str(device) == "cuda":
            self._device = torch.device("cuda", torch.cuda.current_device())
        count = ring.BLOCKS_EACH * len(readers)
        self._buffers: list[Buffer | None] = [None] * count
        self._copied: list[Any] = []
        if self._pinned:
            self._copied = [torch.cuda.Event() for _ in range(count)]  # type: ignore[no-untyped-call]
        self._carrier: torch.Tensor | None = None
        if self._pinned and scatters(device):
            self._carrier = torch.empty(ring.BLOCK_BYTES, dtype=torch.uint8, device=device)
        self._asks = iter(asks)
        self._planned: deque[tuple[Ask, Cut, Integers]] = deque()
        self._shards: dict[str, int] = {}
        self._blocks = self._plan()
        # Of the ask that is being taken one by one: spans and pieces that are left, and where in both.
        self._at = self._position = self._used = 0
        self._pieces: deque[tuple[int, int, int]] | None = None
        self._block: Block | None = None
        self._parts: list[tuple[int, int, int]] = []
        self._rows, self._carried = 0, False
        self._coming: deque[Block] = deque()
        # Queues of C instead of an executor: its locks pass the interpreter on several times a block.
        self._wanted: queue.SimpleQueue[Block | None] = queue.SimpleQueue()
        self._threads = [
            Thread(target=self._serve, args=(reader,), name=f"intarsia-read-ahead-{index}", daemon=True)
            for index, reader in enumerate(readers)
        ]
        for buffer in range(count):
            self._submit(buffer)
        for thread in self._threads:
            thread.start()

    @property
    def nbytes(self) -> int:
        """Bytes of the ring."""
        return len(self._buffers) * ring.BUFFER_BYTES

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

    def deliver(self, targets: Callable[[], Integers]) -> None:
        """Carries the spans of the ask that comes next to addresses on the device, one a span; all are there
        after `flush`. Raises what reading them raised.
        """
        begin = perf_counter()
        _, (pieces, *_), order = self._planned[0]
        address = targets()[order][pieces.item] + pieces.offset
        rows, part = table(pieces.place, address, pieces.length)
        block = pieces.block[part]
        numbers = np.arange(block[0], block[-1] + 1)
        bounds = [*np.searchsorted(block, numbers).tolist(), len(block)]
        self.times.planning += perf_counter() - begin
        for index, number in enumerate(numbers.tolist()):
            self._turn_to(number)
            self._send(rows[bounds[index] : bounds[index + 1]])
        self._planned.popleft()

    def bring(self, whole: torch.Tensor, begins: Integers) -> None:
        """Copies the spans of the ask that comes next to bytes of the flat `whole`, from `begins` on, one a
        span: better than `deliver` for long ones. Raises what reading them raised.
        """
        _, (pieces, *_), order = self._planned[0]
        first = begins[order][pieces.item] + pieces.offset
        for block, place, begin, count in zip(
            pieces.block.tolist(), pieces.place.tolist(), first.tolist(), pieces.length.tolist(), strict=True
        ):
            self._turn_to(block)
            self._copy(place, whole[begin : begin + count])
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

    def require_unchanged(self) -> None:
        """Raises ChangedError if a file is not the one it was: what came out of the ring is to be thrown away
        then. Call it before that is used.
        """
        for shard in self._shards:
            self._readers[0].require_unchanged(shard)

    def close(self) -> None:
        """Ends the threads and waits for copies that are under way."""
        with suppress(queue.Empty):
            while True:
                self._wanted.get_nowait()
        for _ in self._threads:
            self._wanted.put(None)
        for thread in self._threads:
            thread.join()
        if self._copied:
            torch.cuda.synchronize(self._device)
        self._buffers.clear()

    def _give(self, place: int, count: int, target: torch.Tensor, done: int) -> None:
        if self._carrier is not None and target.is_cuda and count < LONG:
            self._parts.append((place, target.data_ptr() + done, count))
            return
        self._copy(place, target.view(-1).view(torch.uint8)[done : done + count])

    def _copy(self, place: int, target: torch.Tensor) -> None:
        begin = perf_counter()
        target.copy_(self._held().block[place : place + target.numel()], non_blocking=True)
        self.times.sending += perf_counter() - begin

    def _send(self, rows: Integers) -> None:
        """Rows of a scatter's table for the block that is there. The kernel reads them beside the block."""
        begin = perf_counter()
        buffer = self._held()
        if self._carrier is None:
            scatter(buffer.block, rows)
        else:
            if not self._carried:
                self._carrier.copy_(buffer.block, non_blocking=True)
                self._carried = True
            for first in range(0, len(rows), ring.ROOM_ROWS):
                some = rows[first : first + ring.ROOM_ROWS]
                if self._rows + len(some) > ring.ROOM_ROWS:
                    torch.cuda.current_stream(self._device).synchronize()
                    self._rows = 0
                scatter(self._carrier, some, buffer.room[self._rows :])
                # Even, or the kernel would be compiled again for addresses that are no multiples of 16.
                self._rows += len(some) + len(some) % 2
        self.times.sending += perf_counter() - begin

    def _held(self) -> Buffer:
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
            if (problem := self._coming[0].wait()) is not None:
                self._name(self._coming[0].number)
                raise problem
            ready = perf_counter()
            self._block = self._coming.popleft()
            self._rows, self._carried = 0, False
            self.times.no_bytes += ready - begin
            self.times.sending += perf_counter() - ready

    def _name(self, number: int) -> None:
        """Reads the tensors of a block that could not be read one by one: raises what names one of them."""
        with self._readers[0].twin() as reader:
            for ask, (pieces, *_), order in self._planned:
                for piece in np.flatnonzero(pieces.block == number).tolist():
                    at = order[pieces.item[piece]]
                    begin = int(ask.begins[at] + pieces.offset[piece])
                    length = int(pieces.length[piece])
                    reader.read_into(ask.entries[at], bytearray(length), begin, begin + length)

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
        made = next(self._blocks, None)
        self.times.planning += perf_counter() - begin
        if made is not None:
            number, reads = made
            block = Block(number, buffer, reads)
            self._coming.append(block)
            self._wanted.put(block)

    def _serve(self, reader: Reader) -> None:
        """Reads blocks until there are no more: what one thread does."""
        while (block := self._wanted.get()) is not None:
            problem: BaseException | None = None
            try:
                self._read(block, reader)
            except BaseException as error:  # handed on to who waits for the block
                problem = error
            block.done.put(problem)

    def _read(self, block: Block, reader: Reader) -> None:
        begin = perf_counter()
        buffer = self._buffers[block.buffer]
        if buffer is None:
            with on_device(self._device):
                buffer = self._buffers[block.buffer] = Buffer(self._pinned)
        elif self._copied and not self._copied[block.buffer].query():
            self._copied[block.buffer].synchronize()
        ready = perf_counter()
        for shard, first, last, place in block.reads:
            reader.fill_range(shard, first, buffer.view[place : place + last - first])
        self.times.no_buffer += ready - begin
        self.times.reading += perf_counter() - ready

    def _plan(self) -> Iterator[tuple[int, list[Read]]]:
        """What each block takes, in order; an ask is planned when its first block is wanted."""
        stop, number = 0, 0
        reads: list[Read] = []
        for ask in self._asks:
            ranges, order = ask.ranges(self._shards, self._readers[0].size)
            if not len(order):
                continue
            made = cut(ranges, ring.BLOCK_BYTES, stop)
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
                reads.append(Read(names[shard], begin, begin + count, place))
        if reads:
            yield number, reads
