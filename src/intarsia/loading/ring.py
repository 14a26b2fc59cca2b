"""The ring's buffers, and the blocks of bytes that threads read into them."""

import queue
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch

from intarsia.checkpoint.reader import LINE
from intarsia.kernels.scatter import CHUNK

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


class Read(NamedTuple):
    """Bytes `begin` to `end` of a shard's file, to a place in a buffer."""

    shard: str
    begin: int
    end: int
    place: int


class Block:
    """A block that is being read: its number, its buffer, what is read, and how that ended."""

    __slots__ = ("buffer", "done", "number", "problem", "reads")

    def __init__(self, number: int, buffer: int, reads: Sequence[Read]) -> None:
        self.number, self.buffer, self.reads = number, buffer, reads
        self.done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self.problem: BaseException | None = None

    def wait(self) -> BaseException | None:
        """Returns once the block is there, or what reading it raised: the same every time."""
        if self.problem is None:
            self.problem = self.done.get()
        return self.problem


class Buffer:
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
