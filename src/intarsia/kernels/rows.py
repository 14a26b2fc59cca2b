"""The rows of one step, as every operation of the network takes them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from intarsia.core.rows import padded_count

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

    def segments(self) -> "list[Segment]":
        """The segments as host values, for the CPU reference and the host side of a launch."""
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


@dataclass(frozen=True, slots=True)
class Piece:
    """What a caller asks to run of one stream: `tokens` from `position` on."""

    stream: int
    position: int
    tokens: Sequence[int]
    recurrent: bool


def rows_of(pieces: Sequence[Piece], page_table: Tensor) -> Rows:
    """Lay out `pieces` as rows on the device of `page_table`, recurrent ones first, padded."""
    ordered = [piece for piece in pieces if piece.recurrent] + [p for p in pieces if not p.recurrent]
    tokens: list[int] = []
    positions: list[int] = []
    streams: list[int] = []
    starts = [0]
    for piece in ordered:
        count = len(piece.tokens)
        tokens += piece.tokens
        positions += range(piece.position, piece.position + count)
        streams += [piece.stream] * count
        starts.append(starts[-1] + count)
    count = padded_count(len(tokens))
    missing = count - len(tokens)
    device = page_table.device
    # One copy to the device for everything that is int32.
    numbers = [*positions, *[0] * missing, *streams, *[NO_STREAM] * missing, *starts]
    packed = torch.tensor(numbers, dtype=torch.int32, device=device)
    return Rows(
        tokens=torch.tensor(tokens + [0] * missing, dtype=torch.int64, device=device),
        positions=packed[:count],
        streams=packed[count : 2 * count],
        starts=packed[2 * count :],
        page_table=page_table,
        recurrent_segments=sum(piece.recurrent for piece in ordered),
    )
