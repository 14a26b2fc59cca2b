"""The one draw over shards of the vocabulary: every rank offers its best, and all pick the same token.

What is exchanged is one number a row (the peak) and then candidates: one a row for greedy rows and rows
without cuts, a few hundred for a nucleus, more only when it runs past them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from intarsia.core.config import SamplingSettings
from intarsia.engine.sampling.candidates import Candidates, best_noisy, likeliest, peaks
from intarsia.engine.sampling.draw import NUCLEUS_WIDTHS, allowed, pick
from intarsia.engine.sampling.rows import Rows
from intarsia.groups.group import Group


def draw_shards(
    logits: Tensor,
    positions: Tensor,
    settings: SamplingSettings | Sequence[SamplingSettings],
    group: Group,
    vocabulary: Sequence[range],
) -> Tensor:
    """What `draw` gives for the whole rows, of which this rank has the logits float32 [R, n] of its part.

    `vocabulary` are all ranks' parts in order. Every rank calls this with the same positions and settings.
    """
    per_row = [settings] * len(logits) if isinstance(settings, SamplingSettings) else list(settings)
    first_id = vocabulary[group.rank].start
    # maximum, unlike a sort, lets NaN through
    peak = torch.stack(group.gather(peaks(logits))).amax(0)
    rows = Rows.of(per_row, positions)
    cut = [index for index, entry in enumerate(per_row) if entry.greedy or entry.cut]
    free = [index for index, entry in enumerate(per_row) if not (entry.greedy or entry.cut)]
    drawn = torch.empty_like(positions)
    if cut:
        index = torch.tensor(cut, device=logits.device)
        drawn[index] = _draw_cut(
            logits[index], rows.take(cut), peak[index], group, first_id, max(len(part) for part in vocabulary)
        )
    if free:
        index = torch.tensor(free, device=logits.device)
        noisy = best_noisy(logits[index], rows.take(free), peak[index], first_id=first_id)
        drawn[index] = pick(_merged(noisy, group), rows.take(free), peak[index])
    return drawn


def _draw_cut(logits: Tensor, rows: Rows, peak: Tensor, group: Group, first_id: int, most: int) -> Tensor:
    limits = [1 if entry.greedy else entry.top_k for entry in rows.settings]
    least = max(limits)
    widths = [least] if all(limits) else [*(width for width in NUCLEUS_WIDTHS if width >= least), most]
    for width in widths:
        # equal on all ranks: a narrower shard pads
        candidates = _merged(likeliest(logits, rows, peak, min(width, most), first_id=first_id), group)
        kept, certain = allowed(candidates, rows, peak)
        if width == widths[-1] or bool(certain.all()):
            break
    return pick(candidates, rows, peak, kept)


def _merged(own: Candidates, group: Group) -> Candidates:
    """All ranks' candidates as those of the whole vocabulary: one exchange."""
    packed = torch.cat([own.keys, own.floor[:, None], own.mass[:, None]], dim=1)
    return Candidates.merged(
        [Candidates(part[:, :-2], part[:, -2], part[:, -1]) for part in group.gather(packed)]
    )
