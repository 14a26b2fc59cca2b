"""What will be asked of a ring, in order: single spans, or many ranges that are wanted together."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from intarsia.checkpoint import TensorEntry
from intarsia.checkpoint.errors import RangeError, TruncatedError
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
        self.begins = _integers(begins)
        self.lengths = _integers(lengths)
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

    def ranges(self, shards: dict[str, int], size: Callable[[str], int]) -> tuple[Ranges, Integers]:
        """Where the spans lie in files, in the order to read, and which span each is; those without bytes are
        none of them. New files are numbered; `size` knows their bytes.

        Raises TruncatedError or RangeError for a span that is not in its file.
        """
        number = np.array(
            [shards.setdefault(entry.shard, len(shards)) for entry in self.entries], dtype=np.int64
        )
        place = _integers([entry.begin for entry in self.entries])
        self._require_inside(place, np.array([size(shard) for shard in shards], dtype=np.int64)[number])
        begin = self.begins + place
        order = np.flatnonzero(self.lengths)
        if self.together:
            order = order[np.lexsort((begin[order], number[order]))]
        return Ranges(number[order], begin[order], (begin + self.lengths)[order]), order

    def _require_inside(self, place: Integers, size: Integers) -> None:
        numbers = np.stack([place, self.begins, self.lengths])
        # Each by itself too: a sum of numbers as large as a header may hold begins again below zero.
        wrong = ((numbers < 0) | (numbers > size)).any(axis=0) | (numbers.sum(axis=0) > size)
        for at in np.flatnonzero(wrong & (self.lengths != 0)).tolist():
            entry = self.entries[at]
            kind = RangeError if (numbers[:, at] < 0).any() else TruncatedError
            raise kind(
                f"{entry.shard}: {entry.name}",
                found=f"{entry.nbytes:,} bytes from byte {entry.begin:,} on, in a file of {size[at]:,} bytes",
                expected="the bytes its header promises",
                action="download the shard again",
            )


def _integers(values: Sequence[int]) -> Integers:
    """int64; what that cannot hold becomes a number that is outside of every file."""
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return np.array([max(-1, min(value, 1 << 60)) for value in values], dtype=np.int64)


def one_by_one(spans: Iterator[Span]) -> Iterator[Ask]:
    """Spans that will be taken one after another, some at a time."""
    some_bytes = (span for span in spans if span.begin < span.end)
    while some := list(islice(some_bytes, SPANS)):
        yield Ask.of(some)
