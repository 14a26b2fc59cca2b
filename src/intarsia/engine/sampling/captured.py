"""The one draw as it runs inside a captured step: the way is chosen beforehand, and no value is looked at.

What it draws is what `draw` draws, or UNCERTAIN where the first candidates do not settle it. Where a GPU
holds whole rows of logits nothing is uncertain.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from intarsia.core.config import SamplingSettings
from intarsia.engine.sampling.candidates import Candidates, best_noisy, likeliest
from intarsia.engine.sampling.draw import NOTHING_ALLOWED, NUCLEUS_WIDTHS, allowed, pick
from intarsia.engine.sampling.fixedpoint import tables
from intarsia.engine.sampling.rows import NO_LIMIT, Rows, entries
from intarsia.engine.sampling.shards import WHOLE, Shards
from intarsia.kernels.draw import takes
from intarsia.kernels.draw.pick import pick_candidates
from intarsia.kernels.draw.search import Cuts, drawn_token, likeliest_token

UNCERTAIN = -2
"""The nucleus runs past the candidates: the row is to be drawn again by `draw`."""
WIDTH = NUCLEUS_WIDTHS[0]

# The columns of `Rows`, by type; eight bytes each.
COLUMNS = {
    "positions": torch.int64,
    "scales": torch.float64,
    "top_k": torch.int64,
    "top_p": torch.float64,
    "farthest": torch.int64,
    "seed_low": torch.int64,
    "seed_high": torch.int64,
}


class Way(StrEnum):
    """How the rows of a step are drawn; part of a captured step's shape."""

    GREEDY = "greedy"
    UNCUT = "uncut"
    CUT = "cut"
    MIXED = "mixed"


def way_of(settings: Sequence[SamplingSettings]) -> Way:
    """The least work that serves all rows."""
    if all(entry.greedy for entry in settings):
        return Way.GREEDY
    cut = {entry.greedy or entry.cut for entry in settings}
    return Way.MIXED if len(cut) == 2 else Way.CUT if True in cut else Way.UNCUT


def write_columns(
    columns: Mapping[str, npt.NDArray[np.generic]],
    settings: Sequence[SamplingSettings],
    positions: Sequence[int],
) -> None:
    """Fill the columns of the first rows; the others become greedy ones."""
    count = len(settings)
    columns["positions"][:count], columns["positions"][count:] = positions, 0
    known = {entry: entries(entry) for entry in set(settings)}
    table = [known[entry] for entry in settings]
    padding = entries(SamplingSettings(temperature=0.0))
    for index, name in enumerate(list(COLUMNS)[1:]):
        columns[name][:count] = [row[index] for row in table]
        columns[name][count:] = padding[index]


def rows_of_columns(columns: Mapping[str, Tensor]) -> Rows:
    """Columns on the device as rows to draw."""
    return Rows(
        positions=columns["positions"],
        scales=columns["scales"],
        top_k=columns["top_k"],
        top_p=columns["top_p"],
        farthest=columns["farthest"],
        seed_low=columns["seed_low"],
        seed_high=columns["seed_high"],
    )


def draw_captured(logits: Tensor, rows: Rows | None, way: Way, shards: Shards = WHOLE) -> Tensor:
    """Draw one token a row, int64 [R], the same on all ranks; `rows` is not needed for GREEDY.

    logits float32 [R, n] are this rank's part of the vocabulary.
    """
    alone = not shards.parts and takes(logits)
    if way == Way.GREEDY or rows is None:
        return likeliest_token(logits) if alone else shards.likeliest(logits)
    if alone:
        seeds = rows.seed_low, rows.seed_high
        cuts = Cuts(rows.scales, rows.top_k, rows.top_p, rows.farthest, rows.positions, seeds)
        return drawn_token(logits, cuts, tables(logits.device), searching=way != Way.UNCUT)
    peak, first = shards.peaks(logits), shards.first_id

    def uncut() -> Tensor:
        candidates = shards.merged(best_noisy(logits, rows, peak, first_id=first))
        return _picked(candidates, rows, peak, cut=False)

    if way == Way.UNCUT:
        return uncut()
    most = shards.most(logits)
    width = min(WIDTH, most)
    candidates = shards.merged(likeliest(logits, rows, peak, width, first_id=first, nucleus=True))
    # a nucleus among the top k is a share of all of those
    drawn = _picked(candidates, rows, peak, cut=True, certain_k=width if width < most else NO_LIMIT)
    if way == Way.CUT:
        return drawn
    free = (rows.top_k == 0) & (rows.top_p >= 1) & (rows.farthest >= NO_LIMIT)
    return torch.where(free, uncut(), drawn)


def _picked(
    candidates: Candidates, rows: Rows, peak: Tensor, *, cut: bool, certain_k: int = NO_LIMIT
) -> Tensor:
    """The token of each row; UNCERTAIN where the candidates do not settle it, or its top k is above
    `certain_k`."""
    if takes(peak):
        cuts = Cuts(
            rows.scales,
            rows.top_k,
            rows.top_p,
            rows.farthest,
            rows.positions,
            (rows.seed_low, rows.seed_high),
        )
        return pick_candidates(
            candidates.keys.contiguous(), candidates.floor, candidates.mass, peak, cuts, tables(peak.device),
            cut=cut, certain_k=certain_k, uncertain=UNCERTAIN,
        )  # fmt: skip
    if not cut:
        return pick(candidates, rows, peak)
    kept, certain = allowed(candidates, rows, peak)
    certain = certain & (rows.top_k <= certain_k)
    drawn = pick(candidates, rows, peak, kept)
    return torch.where(certain | (drawn == NOTHING_ALLOWED), drawn, UNCERTAIN)
