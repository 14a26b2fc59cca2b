"""What travels over a line: a header of 24 bytes and a payload."""

import struct
from dataclasses import dataclass
from enum import IntEnum

_HEADER = struct.Struct("<4sBBHQQ")
HEADER_BYTES = _HEADER.size
MAGIC = b"isr1"
MOST_BYTES = 1 << 31
"""Of a payload."""


class Kind(IntEnum):
    """What a message is."""

    HELLO = 1
    """The first one on a line, both ways: who speaks, among how many."""
    PIECE = 2
    """A rank's part of the exchange with this number."""
    ENTRY = 3
    """An entry of the ranks' store: a key, its value."""
    DELETE = 4
    """A key to forget."""
    BEAT = 5
    """A sign of life: what the rank does."""
    LOST = 6
    """A rank is lost: which, and what was seen of it."""
    BYE = 7
    """The rank leaves in good order."""


@dataclass(frozen=True, slots=True)
class Header:
    """`hops`: lines still to travel, this one included. `number`: of the exchange, for pieces."""

    kind: Kind
    hops: int
    source: int
    number: int
    length: int

    def packed(self) -> bytes:
        """The header's bytes."""
        return _HEADER.pack(MAGIC, self.kind, self.hops, self.source, self.number, self.length)


def unpack(data: bytes | bytearray) -> Header:
    """The header of such bytes. Raises ValueError for anything else."""
    magic, kind, hops, source, number, length = _HEADER.unpack(data)
    if magic != MAGIC or length > MOST_BYTES:
        raise ValueError("no message of a rank")
    return Header(Kind(kind), hops, source, number, length)
