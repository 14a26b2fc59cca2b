"""The draw gives the same integers and tokens on a GPU as on the CPU."""

import pytest
import torch

from intarsia.engine.sampling import Rows, SamplingSettings, draw
from intarsia.engine.sampling.candidates import noise
from intarsia.engine.sampling.fixedpoint import distances, masses, scale, tables
from intarsia.kernels.draw import noisy_best, takes, total_mass
from intarsia.kernels.draw.search import Cuts, drawn_token, likeliest_token
from tests.kernels.draws import reference_best, rows_of_draws, rows_with_cuts

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def test_noise_and_masses_are_the_same_integers():
    ids = torch.arange(200_000)[None]
    rows = Rows.of([SamplingSettings(temperature=0.7, seed=2**63 + 5)], torch.tensor([2**33 + 1]))
    cuda_rows = Rows.of(rows.settings, rows.positions.cuda())
    assert torch.equal(noise(ids.cuda(), cuda_rows).cpu(), noise(ids, rows))
    logits = torch.randn(4, 50_000, generator=torch.Generator().manual_seed(1)) * 6
    scales = torch.full((4,), scale(0.7), dtype=torch.float64)
    here = distances(logits, logits.amax(1), scales)
    there = distances(logits.cuda(), logits.cuda().amax(1), scales.cuda())
    assert torch.equal(there.cpu(), here)
    assert torch.equal(masses(there).cpu(), masses(here))


@pytest.mark.parametrize("count", [1, 1000, 30_000, 154_880])
def test_the_kernels_give_the_integers_of_the_torch_form(count):
    logits, rows, finite = rows_of_draws(count)
    peak = logits.amax(1)
    there = Rows.of(rows.settings, rows.positions.cuda())
    on_gpu = logits.cuda(), peak.cuda()
    assert takes(on_gpu[0])
    seeds = there.seed_low, there.seed_high
    for first_id in (0, 77_440):
        best = noisy_best(*on_gpu, there.scales, there.positions, seeds, first_id=first_id).cpu()
        assert torch.equal(best[finite], reference_best(logits, rows, peak, first_id)[finite])
    total = total_mass(*on_gpu, there.scales, tables(torch.device("cuda", 0))).cpu()
    assert torch.equal(total[finite], masses(distances(logits, peak, rows.scales)).sum(1)[finite])


def test_draws_are_the_same_tokens():
    logits = torch.randn(24, 30_000, generator=torch.Generator().manual_seed(2)) * 3
    logits[:, ::5] = logits[:, 7:8]
    positions = torch.arange(1000, 1024)
    choices = [
        SamplingSettings(),
        SamplingSettings(temperature=1.0, seed=3),
        SamplingSettings(temperature=0.8, top_p=0.95, seed=3),
        SamplingSettings(temperature=1.0, top_k=50, min_p=0.02, seed=3),
    ] * 6
    assert torch.equal(draw(logits.cuda(), positions.cuda(), choices).cpu(), draw(logits, positions, choices))


@pytest.mark.parametrize("count", [1, 3000, 154_880])
def test_cuts_are_drawn_within_them_by_the_kernels(count):
    logits, settings, positions = rows_with_cuts(count)
    rows = Rows.of(settings, positions.cuda())
    seeds = rows.seed_low, rows.seed_high
    cuts = Cuts(rows.scales, rows.top_k, rows.top_p, rows.farthest, rows.positions, seeds)
    on_gpu = logits.cuda()
    drawn = drawn_token(on_gpu, cuts, tables(on_gpu.device))
    assert torch.equal(drawn.cpu(), draw(logits, positions, settings))
    for first in (0, 7, 39):
        part = [one[first : first + 1] for one in (rows.scales, rows.top_k, rows.top_p, rows.farthest)]
        alone = Cuts(
            *part, rows.positions[first : first + 1], tuple(seed[first : first + 1] for seed in seeds)
        )
        own = drawn_token(on_gpu[first : first + 1], alone, tables(on_gpu.device))
        assert torch.equal(own, drawn[first : first + 1])
    greedy = draw(logits, positions, SamplingSettings(temperature=0.0))
    assert torch.equal(likeliest_token(on_gpu).cpu(), greedy)
