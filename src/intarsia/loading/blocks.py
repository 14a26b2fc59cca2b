"""Cutting byte ranges of files into blocks of a ring, as arrays: what is read where, and where ranges lie.

All blocks of a load together are one stream of bytes. A run of ranges that follow each other in a file takes
a place in it whose remainder by 64 is that of its place in the file, since the kernel's copy is a third
slower between places that do not agree; so cutting the stream every so many bytes keeps that everywhere.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from intarsia.checkpoint.reader import LINE

Integers = NDArray[np.int64]

GAP = 512
"""Bytes between two ranges that are read along with them, so that both take one call."""


class Ranges(NamedTuple):
    """Bytes `begin` to `end` of files, none empty; `shard` numbers the files."""

    shard: Integers
    begin: Integers
    end: Integers


class Parts(NamedTuple):
    """Parts of items, in order: of which item, in which block and where there, the first of its bytes, and
    how many.
    """

    item: Integers
    block: Integers
    place: Integers
    offset: Integers
    length: Integers


class Cut(NamedTuple):
    """Where ranges lie in blocks (`pieces`), and the reads that fill those: parts of `runs`.

    `stop` is where the stream goes on.
    """

    pieces: Parts
    reads: Parts
    runs: Ranges
    stop: int


def cut(ranges: Ranges, size: int, start: int) -> Cut:
    """Ranges in the order in which they are wanted, into blocks of `size` bytes, from byte `start` of the
    stream on. Both are multiples of 64.
    """
    shard, begin, end = ranges
    new = np.empty(len(shard), dtype=bool)
    new[:1] = True
    gap = begin[1:] - end[:-1]
    new[1:] = (shard[1:] != shard[:-1]) | (gap < 0) | (gap > GAP)
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(shard))[: len(first)] - 1
    runs = Ranges(shard[first], begin[first], end[last])
    length = runs.end - runs.begin
    lead = runs.begin % LINE
    ends = start + np.cumsum((lead + length + LINE - 1) // LINE * LINE)
    position = np.empty_like(ends)
    position[:1] = start
    position[1:] = ends[:-1]
    position += lead
    own = np.cumsum(new) - 1
    pieces = split(position[own] + begin - runs.begin[own], end - begin, size)
    return Cut(pieces, split(position, length, size), runs, int(ends[-1]) if len(ends) else start)


def split(position: Integers, count: Integers, size: int) -> Parts:
    """Stretches of a stream cut at every multiple of `size`."""
    block = position // size
    parts = (position + count - 1) // size - block + 1
    item = np.repeat(np.arange(len(parts)), parts)
    block = block[item] + np.arange(len(item)) - (np.cumsum(parts) - parts)[item]
    begin = np.maximum(position[item], block * size)
    end = np.minimum(position[item] + count[item], (block + 1) * size)
    return Parts(item, block, begin - block * size, begin - position[item], end - begin)
