"""Sorting a step's pairs into blocks of one expert, and x in the products' order: the launches."""

import torch
from torch import Tensor

from intarsia.kernels.device import begun_early

_CHUNK, _MANY_CHUNK, _PIECE, _AT_ONCE = 4096, 512, 32, 16
_COLUMNS = 4096
MOST_UNSORTED = 64
"""Pairs whose blocks the products find for themselves; see gluon_blocks."""


class NoGroups:
    """What stands for the blocks of so few pairs that none are made: the choices."""

    def __init__(self, x: Tensor, chosen: Tensor, *, overlap: bool, arranged: Tensor | None = None) -> None:
        """`arranged`: x in the products' order, where it is there already."""
        from intarsia.kernels.experts import triton_grouping

        self.pairs, self.lists = chosen.numel(), [chosen] * 4
        self.blocks = self.pairs
        self.x = torch.empty_like(x) if arranged is None else arranged
        if arranged is None:
            options = _columns(x) | begun_early(overlap)
            triton_grouping.arrange_rows[(x.shape[0],)](x, self.x, num_warps=4, **options)


class Groups:
    """The blocks of a step: `lists` holds the order of pairs and, a block, its expert, first place and count.

    Blocks lie together; `blocks` is the most that there can be, and those that are not needed count nothing.
    `x` bfloat16 is as a product reads it: [rows, D] for kernels of few rows a block, [pairs, D] in places of
    the order for those of many.
    """

    def __init__(
        self, x: Tensor, chosen: Tensor, experts: int, each: int, *, many: bool, overlap: bool
    ) -> None:
        """Blocks of at most `each` pairs of `chosen` [rows, top]; `overlap`: kernels start early."""
        from intarsia.kernels.experts import triton_grouping

        self._kernels = triton_grouping
        self._chosen, self._experts, self._each = chosen, experts, each
        self.pairs = chosen.numel()
        self.blocks = min(self.pairs, experts + self.pairs // each)
        # Each list begins at 16 bytes, or kernels would be compiled once more for those that do not.
        sizes = [-(-size // 4) * 4 for size in (self.pairs, *[self.blocks] * 3)]
        numbers = torch.empty(sum(sizes), dtype=torch.int32, device=x.device)
        self.lists = list(torch.split_with_sizes(numbers, sizes))
        shape = (self.pairs if many else x.shape[0], x.shape[1])
        self.x = torch.empty(shape, dtype=x.dtype, device=x.device)
        if many:
            self._many(x)
        else:
            self._some(x, overlap)

    def _some(self, x: Tensor, overlap: bool) -> None:
        """A program an expert sorts, the others order rows."""
        chunk = min(_CHUNK, max(128, 1 << (self.pairs - 1).bit_length()))
        self._kernels.group_some[(self._experts + x.shape[0],)](
            self._chosen,
            *self.lists,
            x,
            self.x,
            self.pairs,
            self.blocks,
            EXPERTS=self._experts,
            BINS=self._bins,
            NT=self._each,
            CHUNK=chunk,
            num_warps=4,
            **_columns(x),
            **begun_early(overlap),
        )

    @property
    def _bins(self) -> int:
        return 1 << self._experts.bit_length()

    def _many(self, x: Tensor) -> None:
        """A program a chunk of pairs counts, then sorts; then a program a row puts it in its places."""
        chunks, bins = -(-self.pairs // _MANY_CHUNK), self._bins
        numbers = torch.empty(chunks * bins + self.pairs, dtype=torch.int32, device=x.device)
        counts, places = numbers[: chunks * bins], numbers[chunks * bins :]
        self._kernels.count_pairs[(chunks,)](
            self._chosen, counts, self.pairs, BINS=bins, CHUNK=_MANY_CHUNK, num_warps=4
        )
        self._kernels.place_pairs[(max(chunks, self._experts),)](
            self._chosen,
            counts,
            places,
            *self.lists,
            self.pairs,
            self.blocks,
            chunks,
            EXPERTS=self._experts,
            BINS=bins,
            NT=self._each,
            CHUNK=_MANY_CHUNK,
            PIECE=_PIECE,
            AT_ONCE=_AT_ONCE,
            num_warps=8,
        )
        top = self._chosen.shape[1]
        self._kernels.spread_row[(x.shape[0],)](x, places, self.x, TOP=top, num_warps=4, **_columns(x))


def _columns(x: Tensor) -> dict[str, int]:
    """Columns that are ordered at a time: the largest power of two that divides a row, at most 4096."""
    width = x.shape[1]
    return {"K": width, "PIECE": min(width & -width, _COLUMNS)}
