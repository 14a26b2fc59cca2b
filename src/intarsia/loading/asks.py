"""What will be asked of a ring, in order: single spans, or many ranges that are wanted together."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from typing import NamedTuple

import numpy as np

from intarsia.checkpoint import TensorEntry
from intarsia.loading.blocks import Integers, Ranges

SPANS = 64
"""Spans that are planned at a time."""


class Span(NamedTuple):
    """Bytes `begin` to `end` of a stored tensor."""

    entry: TensorEntry
    begin: int
    end: int


class Ask:
    """Spans that a ring reads one after another. `together`: in the order of the files, delivered at once."""

    def __init__(self, spans: Sequence[Span], *, together: bool = False) -> None:
        self.spans = spans
        self.together = together

    @cached_property
    def lengths(self) -> Integers:
        """Bytes of every span."""
        return np.array([end - begin for _, begin, end in self.spans], dtype=np.int64)

    def ranges(self, shards: dict[str, int]) -> tuple[Ranges, Integers]:
        """Where the spans lie in files, in the order to read, and which span each is; those without bytes are
        none of them. New files are numbered.
        """
        numbers = np.array(
            [
                (shards.setdefault(entry.shard, len(shards)), entry.begin + begin)
                for entry, begin, _ in self.spans
            ],
            dtype=np.int64,
        ).reshape(-1, 2)
        order = np.flatnonzero(self.lengths)
        if self.together:
            order = order[np.lexsort((numbers[order, 1], numbers[order, 0]))]
        shard, begin = np.ascontiguousarray(numbers[order].T)
        return Ranges(shard, begin, begin + self.lengths[order]), order


def one_by_one(spans: Iterator[Span]) -> Iterator[Ask]:
    """Spans that will be taken one after another, some at a time."""
    some_bytes = (span for span in spans if span.begin < span.end)
    while some := list(islice(some_bytes, SPANS)):
        yield Ask(some)
