"""Chunks of a step's prompts that run at once, and where they lie."""

from dataclasses import dataclass

from torch import Tensor

from intarsia.kernels.rows import Rows

ENTRY = 8
"""Numbers of the table of chunks for each."""


@dataclass(frozen=True, slots=True)
class Group:
    """`count` chunks from the `first` on of all `segments` prompt segments."""

    segments: int
    first: int
    count: int

    @property
    def places(self) -> int:
        """Room for the segments in a kernel: a power of two."""
        return 1 << (self.segments - 1).bit_length()

    def locate(self, rows: Rows, table: Tensor) -> None:
        """Into `table` [count, ENTRY] where each chunk lies."""
        from intarsia.kernels.kda import triton_parts

        triton_parts.plan_chunks[(self.count,)](
            rows.starts,
            rows.positions,
            table,
            rows.recurrent_segments,
            self.segments,
            self.first,
            SEGMENTS=self.places,
            ENTRY=ENTRY,
            num_warps=1,
        )
