"""Sorting a step's pairs into blocks of one expert, and x in the products' order: the launches."""

from typing import Any

import torch
from torch import Tensor

_FEW_PAIRS = 256  # pairs that one program sorts
_CHUNK, _MANY_CHUNK, _PIECE = 4096, 512, 32
_COLUMNS = 4096
MOST_UNSORTED = 64
"""Pairs whose blocks the products find for themselves; see gluon_blocks."""


class NoGroups:
    """What stands for the blocks of so few pairs that none are made: the choices, and x as it is."""

    def __init__(self, x: Tensor, chosen: Tensor) -> None:
        self.x, self.pairs, self.lists = x, chosen.numel(), [chosen] * 4
        self.blocks = self.pairs


class Groups:
    """The blocks of a step: `lists` holds the order of pairs and, a block, its expert, first place and count.

    `blocks` counts them, spare ones included. `x` bfloat16 is as a product reads it: [rows, D] for kernels of
    few rows a block, [pairs, D] in places of the order for those of many.
    """

    def __init__(
        self, x: Tensor, chosen: Tensor, experts: int, each: int, *, many: bool, overlap: bool
    ) -> None:
        """Blocks of at most `each` pairs of `chosen` [rows, top]; `overlap`: kernels start early."""
        from intarsia.kernels.experts import gluon_order, triton_grouping

        self._kernels, self._gather = triton_grouping, gluon_order.gather_rows
        self._chosen, self._experts, self._each = chosen, experts, each
        self.pairs = chosen.numel()
        small = self.pairs <= _FEW_PAIRS and not many
        self.blocks = self.pairs if small else experts + self.pairs // each
        # Each list begins at 16 bytes, or kernels would be compiled once more for those that do not.
        sizes = [-(-size // 4) * 4 for size in (self.pairs, *[self.blocks] * 3, 1)]
        numbers = torch.empty(sum(sizes), dtype=torch.int32, device=x.device)
        *self.lists, self._total = torch.split_with_sizes(numbers, sizes)
        shape = (self.pairs if many else x.shape[0], x.shape[1])
        self.x = torch.empty(shape, dtype=x.dtype, device=x.device)
        if many:
            self._many(x)
        else:
            options = {"OVERLAP": overlap} | ({"launch_pdl": True} if overlap else {})
            (self._few if small else self._some)(x, options)

    def _few(self, x: Tensor, options: dict[str, Any]) -> None:
        """One program sorts, the others order rows."""
        places = max(16, 1 << (self.pairs - 1).bit_length())
        arguments = (self._chosen, *self.lists, x, self.x, self.pairs)
        self._kernels.group_few[(1 + x.shape[0],)](
            *arguments,
            NT=self._each,
            PLACES=places,
            num_warps=8 if places > 128 else 4,
            **_columns(x),
            **options,
        )

    def _some(self, x: Tensor, options: dict[str, Any]) -> None:
        """A program an expert sorts, the others order rows."""
        chunk = min(_CHUNK, 1 << (self.pairs - 1).bit_length())
        arguments = (self._chosen, *self.lists, self._total, x, self.x, self.pairs, self.blocks)
        self._kernels.group_many[(self._experts + x.shape[0],)](
            *arguments,
            EXPERTS=self._experts,
            NT=self._each,
            CHUNK=chunk,
            num_warps=4,
            **_columns(x),
            **options,
        )

    def _many(self, x: Tensor) -> None:
        """A program a chunk of pairs counts, then sorts; then a program a pair orders."""
        chunks, bins = -(-self.pairs // _MANY_CHUNK), 1 << self._experts.bit_length()
        counts = torch.empty(chunks, bins, dtype=torch.int32, device=x.device)
        self._kernels.count_pairs[(chunks,)](
            self._chosen, counts, self.pairs, BINS=bins, CHUNK=_MANY_CHUNK, num_warps=4
        )
        self._kernels.place_pairs[(max(chunks, self._experts),)](
            self._chosen,
            counts,
            *self.lists,
            self._total,
            self.pairs,
            self.blocks,
            chunks,
            EXPERTS=self._experts,
            BINS=bins,
            NT=self._each,
            CHUNK=_MANY_CHUNK,
            PIECE=_PIECE,
            num_warps=8,
        )
        self._gather[(self.pairs,)](
            x.view(torch.int32),
            self.lists[0],
            self._total,
            self.x.view(torch.int32),
            TOP=self._chosen.shape[1],
            K=x.shape[1],
            WARPS=2,
            num_warps=2,
        )


def _columns(x: Tensor) -> dict[str, int]:
    """Columns that are ordered at a time: the largest power of two that divides a row, at most 4096."""
    width = x.shape[1]
    return {"K": width, "PIECE": min(width & -width, _COLUMNS)}
