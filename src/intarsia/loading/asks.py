"""What will be asked of a ring, in order: single spans, or many ranges that are wanted together."""

from collections.abc import Iterator, Sequence
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
    """Spans that a ring reads one after another: of entry i `lengths[i]` bytes from byte `begins[i]` on.

    `together`: they are read in the order of the files, and delivered at once. Arrays, since there are tens
    of thousands.
    """

    def __init__(
        self,
        entries: Sequence[TensorEntry],
        begins: Sequence[int],
        lengths: Sequence[int],
        *,
        together: bool = False,
    ) -> None:
        self.entries = entries
        self.begins = np.array(begins, dtype=np.int64)
        self.lengths = np.array(lengths, dtype=np.int64)
        self.together = together

    @classmethod
    def of(cls, spans: Sequence[Span]) -> "Ask":
        """Spans that are taken one after another."""
        begins, lengths = [span.begin for span in spans], [span.end - span.begin for span in spans]
        return cls([span.entry for span in spans], begins, lengths)

    @property
    def spans(self) -> Iterator[Span]:
        """The spans, one by one."""
        for entry, begin, length in zip(
            self.entries, self.begins.tolist(), self.lengths.tolist(), strict=True
        ):
            yield Span(entry, begin, begin + length)

    def ranges(self, shards: dict[str, int]) -> tuple[Ranges, Integers]:
        """Where the spans lie in files, in the order to read, and which span each is; those without bytes are
        none of them. New files are numbered.
        """
        number = np.array(
            [shards.setdefault(entry.shard, len(shards)) for entry in self.entries], dtype=np.int64
        )
        begin = self.begins + np.array([entry.begin for entry in self.entries], dtype=np.int64)
        order = np.flatnonzero(self.lengths)
        if self.together:
            order = order[np.lexsort((begin[order], number[order]))]
        return Ranges(number[order], begin[order], (begin + self.lengths)[order]), order


def one_by_one(spans: Iterator[Span]) -> Iterator[Ask]:
    """Spans that will be taken one after another, some at a time."""
    some_bytes = (span for span in spans if span.begin < span.end)
    while some := list(islice(some_bytes, SPANS)):
        yield Ask.of(some)
