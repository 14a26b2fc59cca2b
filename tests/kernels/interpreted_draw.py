"""The kernels of the draw in the interpreter against their torch form: prints the cases that differ."""

import json

import torch

from intarsia.engine.sampling.candidates import peaks
from intarsia.engine.sampling.fixedpoint import distances, masses, tables
from intarsia.kernels import draw
from tests.kernels.draws import reference_best, rows_of_draws


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
    return found


if __name__ == "__main__":
    print(json.dumps(differing()))
