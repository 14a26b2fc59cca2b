"""Chunks of a step's prompts that run at once, and where they lie."""

from dataclasses import dataclass

import torch
from torch import Tensor

from intarsia.kernels.rows import Rows

ENTRY = 8
"""Numbers of the table of chunks for each."""


@dataclass(frozen=True, slots=True)
class Group:
    """`count` chunks from the `first` on of all `segments` prompt segments, and where they lie: table [count,
    ENTRY], int32.
    """

    segments: int
    first: int
    count: int
    table: Tensor

    @property
    def places(self) -> int:
        """Room for the segments in a kernel: a power of two."""
        return _places(self.segments)


def groups(rows: Rows, segments: int, bound: int, size: int) -> list[Group]:
    """Up to `bound` chunks, `size` at once; a launch finds out where they lie."""
    from intarsia.kernels.kda import triton_parts

    table = torch.empty(bound, ENTRY, dtype=torch.int32, device=rows.starts.device)
    triton_parts.plan_chunks[(bound,)](
        rows.starts,
        rows.positions,
        table,
        rows.recurrent_segments,
        segments,
        0,
        SEGMENTS=_places(segments),
        ENTRY=ENTRY,
        num_warps=1,
    )
    found = []
    for first in range(0, bound, size):
        count = min(size, bound - first)
        found.append(Group(segments, first, count, table[first : first + count]))
    return found


def _places(segments: int) -> int:
    return 1 << (segments - 1).bit_length()
