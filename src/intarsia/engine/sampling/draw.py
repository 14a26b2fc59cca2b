"""The one draw: which token follows from a row of logits, its settings, its seed and its position.

The logits are divided by the temperature; the allowed set is cut by top_k, then top_p, then min_p; noise
keyed by (seed, position, token id) is added and the largest sum wins, ties going to the lowest id (the
Gumbel-max form of drawing from the softmax). Nothing depends on earlier draws, on the other rows or on how
the vocabulary is spread over ranks, so a token drawn for a draft, in a batch or on several ranks is the token
drawn alone.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from intarsia.core.config import SamplingSettings
from intarsia.core.errors import UsageError
from intarsia.engine.sampling.candidates import (
    PADDING,
    Candidates,
    best_noisy,
    likeliest,
    noise,
    peaks,
    unpack,
)
from intarsia.engine.sampling.fixedpoint import distances, masses, share
from intarsia.engine.sampling.rows import Rows

# How many of the likeliest tokens are looked at for a nucleus before the whole row is put in order.
NUCLEUS_WIDTHS = (128, 1024)
NOTHING_ALLOWED = -1


def seed_from(tokens: Sequence[int]) -> int:
    """A 64-bit seed that follows from a prompt, so that a request without a seed repeats."""
    data = np.asarray(tokens, dtype="<i8").tobytes()
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "little")


def allowed(candidates: Candidates, rows: Rows, peak: Tensor) -> tuple[Tensor, Tensor]:
    """Which candidates survive the cuts (bool [R, K]), and in which rows that is certain (bool [R]).

    A row is uncertain when its last candidate survives although more may follow: ask the shards for more.
    """
    logits, ids = unpack(candidates.keys)
    present = logits > -torch.inf
    distance = distances(logits, peak, rows.scales)
    order = torch.arange(ids.shape[1], device=ids.device)[None]
    top_k = rows.top_k[:, None]
    within_k = present & ((top_k == 0) | (order < top_k))

    mass = masses(distance).masked_fill(~within_k, 0)
    before = mass.cumsum(dim=1) - mass
    total = torch.where(rows.top_k > 0, mass.sum(dim=1), candidates.mass)
    needed = share(total, rows.top_p)[:, None]
    kept = within_k & ((rows.top_p[:, None] >= 1) | (before < needed))
    kept = kept & (distance <= rows.farthest[:, None])
    known = (candidates.keys >= candidates.floor[:, None]).sum(dim=1)
    last_kept = kept.gather(1, (known - 1).clamp(min=0)[:, None])[:, 0]
    enough = (rows.top_k > 0) & (rows.top_k <= known)
    return kept, (candidates.floor == PADDING) | enough | ~last_kept


def pick(candidates: Candidates, rows: Rows, peak: Tensor, kept: Tensor | None = None) -> Tensor:
    """The token of each row (int64 [R]), or -1 where nothing may be drawn (no finite logit, or a NaN).

    `candidates` of the whole vocabulary or merged from its shards; `kept` as `allowed` gives it.
    """
    logits, ids = unpack(candidates.keys)
    if kept is None:
        kept = logits > -torch.inf
    value = noise(ids.clamp(min=0), rows) - distances(logits, peak, rows.scales)
    value = value.masked_fill(~kept, -(2**63))
    best = value.amax(dim=1, keepdim=True)
    winner = torch.where(kept & (value == best), ids, 2**62).amin(dim=1)
    possible = torch.isfinite(peak) & kept.any(dim=1)
    return torch.where(possible, winner, NOTHING_ALLOWED)


def draw(
    logits: Tensor, positions: Tensor | Sequence[int], settings: SamplingSettings | Sequence[SamplingSettings]
) -> Tensor:
    """Draw one token a row from the whole vocabulary; returns int64 [R], -1 where nothing may be drawn.

    logits [R, V] float32, minus infinity for a token that is not allowed; positions [R] int64, or
    integers, where the drawn token will stand; settings for all rows, or one a row, each with a seed unless
    greedy.

    Raises `UsageError` when the shapes do not agree or a row that needs noise has no seed.
    """
    per_row = [settings] * len(logits) if isinstance(settings, SamplingSettings) else list(settings)
    if logits.dim() != 2 or logits.dtype != torch.float32 or logits.shape[1] == 0:
        raise UsageError(
            "logits", found=f"{logits.dtype} {list(logits.shape)}", expected="float32 [rows, vocabulary]"
        )
    if not len(positions) == len(per_row) == len(logits):
        raise UsageError(
            "positions and settings",
            found=f"{len(positions)} and {len(per_row)}",
            expected=f"one entry for each of {len(logits)} rows",
        )
    if all(entry.greedy for entry in per_row):
        best = logits.argmax(dim=1)  # the first of equal ones; a NaN if there is one
        peak = logits.gather(1, best[:, None])[:, 0]
        return torch.where(torch.isfinite(peak), best, NOTHING_ALLOWED)
    if not isinstance(positions, Tensor):
        positions = torch.tensor(positions, device=logits.device)
    peak = peaks(logits)
    rows = Rows.of(per_row, positions)
    groups = (
        ([index for index, entry in enumerate(per_row) if entry.greedy or entry.cut], _draw_cut),
        ([index for index, entry in enumerate(per_row) if not (entry.greedy or entry.cut)], _draw_uncut),
    )
    if not groups[0][0] or not groups[1][0]:
        return (_draw_cut if groups[0][0] else _draw_uncut)(logits, rows, peak)
    drawn = torch.empty_like(positions)
    for indices, method in groups:
        index = torch.tensor(indices, device=logits.device)
        drawn[index] = method(logits[index], rows.take(indices), peak[index])
    return drawn


def _draw_uncut(logits: Tensor, rows: Rows, peak: Tensor) -> Tensor:
    return pick(best_noisy(logits, rows, peak), rows, peak)


def _draw_cut(logits: Tensor, rows: Rows, peak: Tensor) -> Tensor:
    """Look at the likeliest few first; only a nucleus that runs past them needs the whole row in order."""
    vocabulary = logits.shape[1]
    limits = [1 if entry.greedy else entry.top_k for entry in rows.settings]
    least = max(limits)
    widths = [least] if all(limits) else [*(width for width in NUCLEUS_WIDTHS if width >= least), vocabulary]
    for width in widths:
        candidates = likeliest(logits, rows, peak, min(width, vocabulary))
        kept, certain = allowed(candidates, rows, peak)
        if width == widths[-1] or bool(certain.all()):
            break
    return pick(candidates, rows, peak, kept)
