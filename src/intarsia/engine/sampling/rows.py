"""The settings of many rows as tensors, so that one draw serves rows of different requests."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from intarsia.core.config import SamplingSettings
from intarsia.core.errors import UsageError
from intarsia.engine.sampling.fixedpoint import FRACTION_BITS, scale

# Distances end at 2**20 bits, so this limit excludes nothing.
NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class Rows:
    """One entry a row of logits; all tensors are [R] on the logits' device.

    A greedy row is one whose only candidate is the likeliest token (top_k 1), whatever its noise.
    """

    positions: Tensor
    """int64, absolute position of the token to be drawn."""
    scales: Tensor
    """float64, 2**-32 bits of distance per unit of logit."""
    top_k: Tensor
    """int64, 0 without a limit."""
    top_p: Tensor
    """float64, 1 without a limit."""
    farthest: Tensor
    """int64, largest distance min_p keeps, in 2**-32 bits."""
    seed_low: Tensor
    seed_high: Tensor
    """int64, the halves of the seed, 0 .. 2**32 - 1 each."""
    settings: tuple[SamplingSettings, ...] = ()
    """The same on the host, where the way of drawing is chosen without looking at a device's values; none
    where it was chosen beforehand, for a captured step."""

    @classmethod
    def of(cls, settings: Sequence[SamplingSettings], positions: Tensor) -> "Rows":
        """Gather one settings object a row; `positions` [R] int64 also says which device to use.

        Raises `UsageError` when a row that needs noise has no seed.
        """
        if any(entry.seed is None and not entry.greedy for entry in settings):
            raise UsageError("seed", found="none", expected="a seed for every row that is not greedy")
        table = [entries(entry) for entry in settings]

        def column(index: int, dtype: torch.dtype) -> Tensor:
            return torch.tensor([row[index] for row in table], dtype=dtype, device=positions.device)

        return cls(
            positions=positions,
            scales=column(0, torch.float64),
            top_k=column(1, torch.int64),
            top_p=column(2, torch.float64),
            farthest=column(3, torch.int64),
            seed_low=column(4, torch.int64),
            seed_high=column(5, torch.int64),
            settings=tuple(settings),
        )

    def take(self, indices: Sequence[int]) -> "Rows":
        """The rows at `indices`, in that order."""
        settings = [self.settings[index] for index in indices]
        return Rows.of(settings, self.positions[torch.tensor(indices, device=self.positions.device)])


def entries(settings: SamplingSettings) -> tuple[float, int, float, int, int, int]:
    """scale, top_k, top_p, farthest, low and high half of the seed."""
    if settings.greedy:
        return scale(1.0), 1, 1.0, NO_LIMIT, 0, 0
    seed = settings.seed or 0
    farthest = int(-math.log2(settings.min_p) * (1 << FRACTION_BITS)) if settings.min_p > 0 else NO_LIMIT
    return (
        scale(settings.temperature),
        settings.top_k,
        settings.top_p,
        farthest,
        seed & 0xFFFFFFFF,
        seed >> 32,
    )
