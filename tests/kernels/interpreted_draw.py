"""The kernels of the draw in the interpreter against their torch form, run by `interpreting`: prints the
cases that differ.
"""

import itertools
import json

import torch

from intarsia.engine.sampling import Rows, SamplingSettings
from intarsia.engine.sampling import draw as torch_draw
from intarsia.engine.sampling.candidates import Candidates, best_noisy, likeliest, peaks
from intarsia.engine.sampling.draw import allowed, pick
from intarsia.engine.sampling.fixedpoint import distances, masses, tables
from intarsia.kernels import draw
from intarsia.kernels.draw.offers import best, offer
from intarsia.kernels.draw.pick import pick_candidates
from intarsia.kernels.draw.search import Cuts, drawn_token, likeliest_token
from tests.kernels.draws import reference_best, rows_of_draws, rows_with_cuts


def differing() -> list[str]:
    """Names of cases whose integers are not the torch form's."""
    found = []
    for count in (1, 5, 1024, 2100):
        logits, rows, finite = rows_of_draws(count)
        peak = peaks(logits)
        for first_id in (0, 150_000):
            seeds = rows.seed_low, rows.seed_high
            got = draw.noisy_best(logits, peak, rows.scales, rows.positions, seeds, first_id=first_id)
            if not torch.equal(got[finite], reference_best(logits, rows, peak, first_id)[finite]):
                found.append(f"best of {count} from {first_id}")
        total = draw.total_mass(logits, peak, rows.scales, tables(logits.device))
        if not torch.equal(total[finite], masses(distances(logits, peak, rows.scales)).sum(1)[finite]):
            found.append(f"mass of {count}")
    found += [name for count in (1, 600) for name in drawn_otherwise(count)]
    widths = ((1, 9), (3, 40))
    return found + [f"picks of {n}, {width} wide" for n, width in widths if not picked_alike(n, width)]


def drawn_otherwise(count: int) -> list[str]:
    """Names of rows whose token is not the torch form's."""
    logits, settings, positions = rows_with_cuts(count)
    some = range(0, len(settings), 5)
    logits, settings, positions = logits[some], [settings[row] for row in some], positions[some]
    rows = Rows.of(settings, positions)
    seeds = rows.seed_low, rows.seed_high
    cuts = Cuts(rows.scales, rows.top_k, rows.top_p, rows.farthest, positions, seeds)
    got = drawn_token(logits, cuts, tables(logits.device))
    expected = torch_draw(logits, positions, settings)
    found = [f"row {row} of {count}" for row in (got != expected).nonzero().flatten().tolist()]
    likeliest = torch_draw(logits, positions, SamplingSettings(temperature=0.0))
    found += [f"offers of {ranks}" for ranks in (1, 2, 3) if not offered_alike(logits, likeliest, ranks)]
    return found + ["likeliest"] * (not torch.equal(likeliest_token(logits), likeliest))


def offered_alike(logits: torch.Tensor, expected: torch.Tensor, ranks: int) -> bool:
    """Whether the best of all shards' offers is the likeliest token of the whole."""
    count = logits.shape[1]
    edges = [0, *(max(1, count * rank // ranks // 2) for rank in range(1, ranks)), count]
    shards = [(logits[:, a:b], a) for a, b in itertools.pairwise(edges) if a < b]
    return torch.equal(best(torch.stack([offer(shard, first) for shard, first in shards])), expected)


def picked_alike(ranks: int, width: int) -> bool:
    """Whether candidates of shards are drawn from as in the torch form, certain ones and others."""
    logits, settings, positions = rows_with_cuts(90)
    rows, peak = Rows.of(settings, positions), peaks(logits)
    edges = [90 * rank // ranks for rank in range(ranks + 1)]
    shards = [(logits[:, a:b], a) for a, b in itertools.pairwise(edges)]
    seeds = rows.seed_low, rows.seed_high
    cuts = Cuts(rows.scales, rows.top_k, rows.top_p, rows.farthest, positions, seeds)
    few = [likeliest(part, rows, peak, width, first_id=first, nucleus=True) for part, first in shards]
    one = [best_noisy(part, rows, peak, first_id=first) for part, first in shards]
    for cut, offers in ((True, few), (False, one)):
        found = Candidates.merged(offers)
        got = pick_candidates(
            found.keys, found.floor, found.mass, peak, cuts, tables(logits.device), cut=cut, certain_k=width,
            uncertain=-2,
        )  # fmt: skip
        expected = pick(found, rows, peak)
        if cut:
            kept, certain = allowed(found, rows, peak)
            expected = pick(found, rows, peak, kept)
            certain = certain & (rows.top_k <= width) | (expected == -1)
            expected = torch.where(certain, expected, -2)
            assert 0 < int(certain.sum()) < len(settings)
        if not torch.equal(got, expected):
            return False
    return True


if __name__ == "__main__":
    print(json.dumps(differing()))
