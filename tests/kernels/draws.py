"""Rows to draw for tests: ties, excluded tokens, extreme temperatures, seeds and positions."""

import torch
from torch import Tensor

from intarsia.engine.sampling import Rows, SamplingSettings
from intarsia.engine.sampling.candidates import noise
from intarsia.engine.sampling.fixedpoint import distances

TEMPERATURES = (1.0, 0.7, 1.0, 0.0001, 100.0, 1.3)
SEEDS = (1, 2**63 + 7, 3, 4, 5, 2**64 - 1)
POSITIONS = (0, 1, 2**33 + 5, 7, 2**31, 123_456)


def rows_of_draws(count: int) -> tuple[Tensor, Rows, Tensor]:
    """Logits [6, count], how each row draws, and which rows have a finite peak."""
    logits = 4 * torch.randn(6, count, generator=torch.Generator().manual_seed(count))
    logits[1, ::3] = -torch.inf
    logits[2] = 0.5
    logits[5, 1::2] = logits[5, :1]
    settings = [
        SamplingSettings(temperature=temperature, seed=seed)
        for temperature, seed in zip(TEMPERATURES, SEEDS, strict=True)
    ]
    return logits, Rows.of(settings, torch.tensor(POSITIONS)), torch.isfinite(logits.amax(1))


def reference_best(logits: Tensor, rows: Rows, peak: Tensor, first_id: int) -> Tensor:
    """The column of each row with the largest noisy value, by the specification."""
    ids = torch.arange(first_id, first_id + logits.shape[1])[None]
    value = noise(ids, rows) - distances(logits, peak, rows.scales)
    return value.masked_fill(logits == -torch.inf, -(2**63)).argmax(1)


CUTS = (
    {"top_p": 0.9},
    {"top_k": 5},
    {"top_k": 300, "top_p": 0.5},
    {"min_p": 0.1},
    {"top_k": 200, "top_p": 0.95, "min_p": 0.01},
    {"temperature": 0.0},
    {"temperature": 0.3, "top_p": 0.999},
    {"temperature": 50.0, "top_p": 0.97},
    {},
    {"top_p": 1e-9},
)


def rows_with_cuts(count: int) -> tuple[Tensor, list[SamplingSettings], Tensor]:
    """Logits [rows, count] of which some are equal, excluded, infinite or no numbers; settings, positions."""
    generator = torch.Generator().manual_seed(count)
    settings = [
        SamplingSettings(**{"temperature": 1.0, "seed": seed, **cuts}) for seed in range(4) for cuts in CUTS
    ]
    logits = 3 * torch.randn(len(settings), count, generator=generator)
    logits[len(CUTS) : 2 * len(CUTS)] = (logits[len(CUTS) : 2 * len(CUTS)] * 2).round() / 2
    logits[2 * len(CUTS) : 3 * len(CUTS), 1::2] = -torch.inf
    logits[-1, 0], logits[-2, -1], logits[-3] = torch.nan, torch.inf, -torch.inf
    return logits, settings, torch.arange(len(settings)) * 77_777
