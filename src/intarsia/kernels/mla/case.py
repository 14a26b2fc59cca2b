"""A case of latent attention, as its launches take it, and what lies between two of them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from intarsia.kernels.device import overlapped, power_of_two, wide
from intarsia.kernels.rows import Rows

LOG2_E = 1.4426950408889634
# Slots of a tile, and tiles of a range: parts of the order of additions.
TILE, _WIDE_TILE, _RANGE_TILES = 64, 16, 4
# Heads of a program on tensor cores, at most, and without.
ROW_HEADS, _WIDE_HEADS = 64, 16


@dataclass(frozen=True, slots=True)
class Ranges:
    """Ranges of rows in the recurrent form before they are added: parts float32 [R, H, ranges, L] and
    statistics float32 [R, H, ranges, 2], as the kernels have them.
    """

    parts: Tensor
    stats: Tensor
    rows: Rows


@dataclass(frozen=True, slots=True)
class Attention:
    """Absorbed queries [R, H, L], what they attend to, and whose kernels do it."""

    name: str
    q: Tensor
    cache: Tensor
    scales: Tensor | None
    selected: Tensor
    rows: Rows
    factor: float
    early: bool

    @property
    def overlapped(self) -> dict[str, bool]:
        return overlapped(self.q.shape[0])

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        rows = self.rows
        where = (self.cache, self.scales, self.selected, rows.page_table, rows.streams, rows.starts)
        return (self.q, *where)

    @property
    def numbers(self) -> tuple[float, int]:
        return self.factor, self.rows.page_table.shape[1]

    @property
    def slots(self) -> int:
        return self.selected.shape[1]

    @property
    def tiles(self) -> int:
        return -(-self.slots // (_WIDE_TILE if wide(self.q.dtype) else TILE))

    def heads_each(self, most: int) -> int:
        return _WIDE_HEADS if wide(self.q.dtype) else min(most, max(16, power_of_two(self.q.shape[1])))

    @property
    def ranges(self) -> tuple[int, int]:
        """How many there are, and tiles of one."""
        splits = max(1, (self.tiles - 1) // _RANGE_TILES)
        return splits, max(1, -(-(self.tiles - 1) // splits))

    @property
    def constants(self) -> dict[str, int | bool]:
        full = wide(self.q.dtype)
        _, heads, latent = self.q.shape
        shape = {"H": heads, "L": latent, "PAGE": self.cache.shape[1], "TILES": self.tiles}
        return {**shape, "TB": _WIDE_TILE if full else TILE, "WIDE": full, "STAGES": 2}

    def room(self, rows: int) -> tuple[Tensor, Tensor]:
        """Memory for parts and statistics of so many rows, as `Ranges` has them."""
        _, heads, latent = self.q.shape
        shape = rows, heads, self.ranges[0]
        parts = torch.empty(*shape, latent, dtype=torch.float32, device=self.q.device)
        return parts, torch.empty(*shape, 2, dtype=torch.float32, device=self.q.device)
