"""What each rank is doing, in memory that the process which started them can read at any moment.

A record a rank: how many exchanges it has entered and left, how often it has shown life, a few words, and the
beats of a thread that does nothing else: they stop when the process is stopped, not when it waits.
Writing one costs a few stores and no system call, so it is done at every exchange.
"""

import mmap
import os
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

_COUNTS = struct.Struct("<QQQI")
_BEATS = struct.Struct("<Q")
_WORDS = 472
RECORD = 512
BEAT = 0.25
"""Seconds between beats."""
LOST = "lost another rank"
"""How a rank's words begin when it ends because of another one."""
STATUS_FILE = "INTARSIA_RANKS_STATUS"
LISTEN_FD = "INTARSIA_RANKS_LISTEN_FD"
LIFELINE_FD = "INTARSIA_RANKS_LIFELINE_FD"
"""What a rank is told by the process that started it, in its environment."""


class Status(Protocol):
    """Hears what a rank is doing."""

    @property
    def watched(self) -> bool:
        """True if another process reads it."""
        ...

    def read(self) -> "Reading":
        """What was told so far."""
        ...

    def enter(self) -> None:
        """An exchange begins: the others are waited for."""
        ...

    def leave(self) -> None:
        """The exchange is over."""
        ...

    def tell(self, words: str) -> None:
        """What comes next, in a few words; counts as a sign of life."""
        ...

    def alive(self) -> None:
        """A sign of life in work that has no exchanges."""
        ...


class _Silent:
    watched = False

    def read(self) -> "Reading":
        """Nothing was heard."""
        return Reading(0, 0, 0, "")

    def enter(self) -> None:
        """Nobody listens."""

    def leave(self) -> None:
        """Nobody listens."""

    def tell(self, words: str) -> None:
        """Nobody listens."""

    def alive(self) -> None:
        """Nobody listens."""


SILENT_STATUS: Status = _Silent()


class Tally:
    """A status that can be read in its own process, and passes everything on to another one."""

    def __init__(self, beyond: Status = SILENT_STATUS) -> None:
        self.beyond = beyond
        self._entered = self._left = self._signs = 0
        self._words = ""

    @property
    def watched(self) -> bool:
        """True if another process reads it."""
        return self.beyond.watched

    def enter(self) -> None:
        """An exchange begins."""
        self._entered += 1
        self.beyond.enter()

    def leave(self) -> None:
        """The exchange is over."""
        self._left = self._entered
        self.beyond.leave()

    def tell(self, words: str) -> None:
        """What comes next."""
        self._words = words
        self._signs += 1
        self.beyond.tell(words)

    def alive(self) -> None:
        """A sign of life."""
        self._signs += 1
        self.beyond.alive()

    def read(self) -> "Reading":
        """What was told so far."""
        return Reading(self._entered, self._left, self._signs, self._words)


@dataclass(frozen=True, slots=True)
class Reading:
    """One rank's record: exchanges entered and left, signs of life, what it said last, and beats."""

    entered: int
    left: int
    signs: int
    words: str
    beats: int = field(default=0, compare=False)

    @property
    def waits(self) -> bool:
        """True while it is inside an exchange."""
        return self.entered > self.left

    @property
    def doing(self) -> str:
        """In which exchange the rank is, or after which, and what it said last."""
        where = f"in exchange {self.entered}" if self.waits else f"after exchange {self.left}"
        return f"{where}; {self.words or 'starting'}"


class SharedStatus:
    """A rank's own record in a file of records that is mapped by it and by whoever watches."""

    watched = True

    def __init__(self, path: str | os.PathLike[str], rank: int) -> None:
        self._map = _mapped(path)
        self._at = rank * RECORD
        self._counts = [0, 0, 0]
        self._length = 0

    def enter(self) -> None:
        """An exchange begins."""
        self._counts[0] += 1
        self._write()

    def leave(self) -> None:
        """The exchange is over."""
        self._counts[1] = self._counts[0]
        self._write()

    def tell(self, words: str) -> None:
        """What comes next."""
        data = words.encode()[:_WORDS]
        at = self._at + _COUNTS.size
        self._map[at : at + len(data)] = data
        self._length = len(data)
        self.alive()

    def alive(self) -> None:
        """A sign of life."""
        self._counts[2] += 1
        self._write()

    def read(self) -> "Reading":
        """What was told so far."""
        return _read(self._map, self._at)

    def beat(self) -> None:
        """Begin to beat, until the process ends."""
        threading.Thread(target=self._beat, name="intarsia-beat", daemon=True).start()

    def _beat(self) -> None:
        at, count = self._at + RECORD - _BEATS.size, 0
        while True:
            count += 1
            _BEATS.pack_into(self._map, at, count)
            time.sleep(BEAT)

    def _write(self) -> None:
        _COUNTS.pack_into(self._map, self._at, *self._counts, self._length)


class StatusBoard:
    """All ranks' records, for reading."""

    def __init__(self, path: str | os.PathLike[str], ranks: int) -> None:
        self.ranks = ranks
        self._map = _mapped(path)

    def read(self, rank: int) -> Reading:
        """The record of one rank."""
        return _read(self._map, rank * RECORD)


def _read(records: mmap.mmap, at: int) -> Reading:
    entered, left, signs, length = _COUNTS.unpack_from(records, at)
    start = at + _COUNTS.size
    words = bytes(records[start : start + min(length, _WORDS)]).decode(errors="replace")
    (beats,) = _BEATS.unpack_from(records, at + RECORD - _BEATS.size)
    return Reading(entered, left, signs, words, beats)


@contextmanager
def status_file(ranks: int) -> Iterator[Path]:
    """A file of empty records, removed at the end."""
    descriptor, name = tempfile.mkstemp(prefix="intarsia-ranks-")
    try:
        os.ftruncate(descriptor, ranks * RECORD)
        os.close(descriptor)
        yield Path(name)
    finally:
        os.unlink(name)


def _mapped(path: str | os.PathLike[str]) -> mmap.mmap:
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), 0)
