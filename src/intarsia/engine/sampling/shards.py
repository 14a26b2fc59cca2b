"""The one draw over shards of the vocabulary: every rank offers its best, and all pick the same token.

What is exchanged is one candidate a row where all rows are greedy; else one number a row (the peak) and then
candidates: one a row for rows without cuts, a hundred for a nucleus, more only when it runs past them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from intarsia.core.config import SamplingSettings
from intarsia.engine.sampling.candidates import Candidates, best_noisy, likeliest, pack, peaks, unpack
from intarsia.engine.sampling.draw import NOTHING_ALLOWED, NUCLEUS_WIDTHS, allowed, draw, pick
from intarsia.engine.sampling.rows import Rows
from intarsia.groups.group import SINGLE, Group
from intarsia.kernels.draw import takes
from intarsia.kernels.draw.offers import best, offer


class _Model(Protocol):
    @property
    def group(self) -> Group: ...

    @property
    def vocabulary(self) -> Sequence[range]: ...


@dataclass(frozen=True)
class Shards:
    """Whose logits are whose: `parts` are all ranks' parts of the vocabulary in order, none for one rank.

    Its exchanges are those of `group`, of fixed shapes: a captured step can hold them where it can hold sums.
    """

    group: Group = SINGLE
    parts: tuple[range, ...] = ()

    @classmethod
    def of(cls, model: _Model) -> "Shards":
        """The shards that a model's ranks compute."""
        return WHOLE if model.group.ranks == 1 else cls(model.group, tuple(model.vocabulary))

    @property
    def first_id(self) -> int:
        """The token of this rank's first logit."""
        return self.parts[self.group.rank].start if self.parts else 0

    def most(self, own: Tensor) -> int:
        """Logits of the widest shard, of which `own` [R, n] is this rank's."""
        return max((len(part) for part in self.parts), default=own.shape[1])

    def peaks(self, own: Tensor) -> Tensor:
        """The largest logit of each whole row, or NaN where there is one."""
        return self.group.largest(peaks(own))

    def merged(self, own: Candidates) -> Candidates:
        """All ranks' candidates as those of the whole vocabulary."""
        if self.group.ranks == 1:
            return own
        packed = torch.cat([own.keys, own.floor[:, None], own.mass[:, None]], dim=1)
        found = self.group.gather(packed)
        return Candidates.merged([Candidates(part[:, :-2], part[:, -2], part[:, -1]) for part in found])

    def likeliest(self, own: Tensor) -> Tensor:
        """The likeliest token of each row (int64 [R]), the lowest of equal ones; -1 where there is no finite
        logit, or a NaN."""
        if self.group.ranks > 1 and takes(own):
            return best(torch.stack(self.group.gather(offer(own, self.first_id))))
        most = own.argmax(dim=1)  # the first of equal ones; a NaN if there is one
        peak = own.gather(1, most[:, None])[:, 0]
        if self.group.ranks > 1:
            # every NaN as the one that stands above infinity in a candidate
            peak = torch.where(peak.isnan(), torch.nan, peak)
            keys = torch.stack(self.group.gather(pack(peak, most + self.first_id))).amax(0)
            peak, most = unpack(keys)
        return torch.where(torch.isfinite(peak), most, NOTHING_ALLOWED)

    def whole(self, own: Tensor) -> Tensor:
        """The whole rows of logits [R, V]: for what may ask for any token."""
        return self.group.gather_columns(own, [len(part) for part in self.parts])


WHOLE = Shards()


def draw_shards(
    logits: Tensor,
    positions: Tensor | Sequence[int],
    settings: SamplingSettings | Sequence[SamplingSettings],
    shards: Shards,
) -> Tensor:
    """What `draw` gives for the whole rows, of which this rank has the logits float32 [R, n] of its part.

    Every rank calls this with the same positions and settings.
    """
    if shards.group.ranks == 1:
        return draw(logits, positions, settings)
    per_row = [settings] * len(logits) if isinstance(settings, SamplingSettings) else list(settings)
    if all(entry.greedy for entry in per_row):
        return shards.likeliest(logits)
    if not isinstance(positions, Tensor):
        positions = torch.tensor(positions, device=logits.device)
    peak = shards.peaks(logits)
    rows = Rows.of(per_row, positions)
    cut = [index for index, entry in enumerate(per_row) if entry.greedy or entry.cut]
    free = [index for index, entry in enumerate(per_row) if not (entry.greedy or entry.cut)]
    drawn = torch.empty_like(positions)
    if cut:
        index = torch.tensor(cut, device=logits.device)
        drawn[index] = _draw_cut(logits[index], rows.take(cut), peak[index], shards)
    if free:
        index = torch.tensor(free, device=logits.device)
        some = rows.take(free)
        noisy = best_noisy(logits[index], some, peak[index], first_id=shards.first_id)
        drawn[index] = pick(shards.merged(noisy), some, peak[index])
    return drawn


def _draw_cut(logits: Tensor, rows: Rows, peak: Tensor, shards: Shards) -> Tensor:
    limits = [1 if entry.greedy else entry.top_k for entry in rows.settings]
    least, most = max(limits), shards.most(logits)
    widths = [least] if all(limits) else [*(width for width in NUCLEUS_WIDTHS if width >= least), most]
    for width in widths:
        # equal on all ranks: a narrower shard pads
        own = likeliest(logits, rows, peak, min(width, most), first_id=shards.first_id)
        candidates = shards.merged(own)
        kept, certain = allowed(candidates, rows, peak)
        if width == widths[-1] or bool(certain.all()):
            break
    return pick(candidates, rows, peak, kept)
