"""The rows of one step, as every operation of the network takes them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from struct import Struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from intarsia.core.rows import padded_count
from intarsia.kernels.looks import look

NO_STREAM = -1


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of several streams, padded to a multiple of 16 (see `intarsia.core.rows`).

    The rows of one stream are consecutive and form a segment, positions rising by one. Segments in the
    recurrent form (decode and verify rows) come first, then those in the prompt form. Padding rows belong to
    no segment and to stream -1: they write to no cache, and what is computed for them is never read.

    tokens int64 [R] · positions int32 [R] · streams int32 [R] · starts int32 [segments + 1], the first row of
    each segment, the last entry being the number of real rows · page_table int32 [streams, pages of a
    window], the physical page of each logical page.

    In a captured step segments may be empty: there are as many as the step's shape has room for, and
    `recurrent_segments` counts them all.
    """

    tokens: Tensor
    positions: Tensor
    streams: Tensor
    starts: Tensor
    page_table: Tensor
    recurrent_segments: int

    @property
    def padding(self) -> Tensor:
        """bool [R], true for rows that belong to no stream."""
        return self.streams < 0

    @property
    def real(self) -> int:
        """How many rows belong to a stream, as a host value."""
        look("how many rows are real")
        return int(self.starts[-1])

    def part(self, where: slice) -> "Rows":
        """Some of the rows, for operations that look at each row by itself: they belong to no segment."""
        size = where.stop - where.start
        real = (self.starts[-1:] - where.start).clamp(0, size)
        return replace(
            self,
            tokens=self.tokens[where],
            positions=self.positions[where],
            streams=self.streams[where],
            starts=real,
            recurrent_segments=0,
        )

    def segments(self) -> "list[Segment]":
        """The segments that have rows as host values, for the CPU reference."""
        look("where segments begin")
        bounds = self.starts.tolist()
        return [
            Segment(
                first=begin,
                count=end - begin,
                stream=int(self.streams[begin]),
                position=int(self.positions[begin]),
                recurrent=index < self.recurrent_segments,
            )
            for index, (begin, end) in enumerate(pairwise(bounds))
            if end > begin
        ]


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive rows `first .. first + count` of one stream, beginning at `position` of its sequence."""

    first: int
    count: int
    stream: int
    position: int
    recurrent: bool

    @property
    def rows(self) -> slice:
        return slice(self.first, self.first + self.count)

    @property
    def end(self) -> int:
        """The position after the last row."""
        return self.position + self.count


class Piece(NamedTuple):
    """What a caller asks to run of one stream: `tokens` from `position` on."""

    stream: int
    position: int
    tokens: Sequence[int]
    recurrent: bool


def rows_of(pieces: Sequence[Piece], page_table: Tensor) -> Rows:
    """Lay out `pieces` as rows on the device of `page_table`, recurrent ones first, padded.

    Everything goes to the device in one copy that nobody waits for.
    """
    ordered = [piece for piece in pieces if piece.recurrent] + [p for p in pieces if not p.recurrent]
    count, segments = padded_count(sum(len(piece.tokens) for piece in ordered)), len(ordered)
    recurrent = sum(piece.recurrent for piece in ordered)
    if page_table.device.type == "cuda":
        packed = torch.empty(packed_size(count, segments), dtype=torch.int32, pin_memory=True)
        pack(ordered, count, segments, packed.numpy())
        return unpack(packed.to(page_table.device, non_blocking=True), count, segments, page_table, recurrent)
    tokens, others = _laid_out(ordered, count, segments)
    numbers, tensor = np.array(others, dtype=np.int32), torch.from_numpy
    return Rows(
        tokens=tensor(np.array(tokens, dtype=np.int64)),
        positions=tensor(numbers[:count]),
        streams=tensor(numbers[count : 2 * count]),
        starts=tensor(numbers[2 * count :]),
        page_table=page_table,
        recurrent_segments=recurrent,
    )


def packed_size(count: int, segments: int) -> int:
    """How many int32 hold `count` rows in `segments`; even."""
    return 4 * count + segments + 1 + (segments + 1) % 2


def pack(pieces: Sequence[Piece], count: int, segments: int, out: npt.NDArray[np.int32]) -> None:
    """Write pieces, in their order, as `count` rows in `segments`: what is not needed is padding and empty.

    `out` int32 [packed_size]: tokens (int64), positions, streams, starts.
    """
    tokens, others = _laid_out(pieces, count, segments)
    _layout(count, segments).pack_into(out.data, 0, *tokens, *others)


@lru_cache
def _layout(count: int, segments: int) -> Struct:
    return Struct(f"={count}q{2 * count + segments + 1}i")


def _laid_out(pieces: Sequence[Piece], count: int, segments: int) -> tuple[list[int], list[int]]:
    """Tokens; positions, streams and starts. Lists, since a few numbers are faster to join than arrays."""
    tokens: list[int] = []
    positions: list[int] = []
    streams: list[int] = []
    starts = [0]
    for piece in pieces:
        tokens += piece.tokens
        positions += range(piece.position, piece.position + len(piece.tokens))
        streams += [piece.stream] * len(piece.tokens)
        starts.append(len(tokens))
    missing = count - len(tokens)
    starts += [len(tokens)] * (segments + 1 - len(starts))
    others = [*positions, *[0] * missing, *streams, *[NO_STREAM] * missing, *starts]
    return tokens + [0] * missing, others


def unpack(packed: Tensor, count: int, segments: int, page_table: Tensor, recurrent: int) -> Rows:
    """The rows in `packed` int32, whose memory begins on a multiple of eight bytes, as views."""
    return Rows(
        tokens=packed[: 2 * count].view(torch.int64),
        positions=packed[2 * count : 3 * count],
        streams=packed[3 * count : 4 * count],
        starts=packed[4 * count : 4 * count + segments + 1],
        page_table=page_table,
        recurrent_segments=recurrent,
    )
