"""On a GPU: every candidate that runs gives the default's bits, and what is installed is what runs."""

from unittest.mock import patch

import pytest
import torch

from intarsia.evidence.tuning.compilers import Compilers
from intarsia.evidence.tuning.timer import HeldTimer
from intarsia.evidence.tuning.work import Workshop
from intarsia.kernels import choice, tuning
from intarsia.kernels.linear import plan
from intarsia.kernels.tuning import Found, Table, configurations
from intarsia.kernels.tuning.search import OTHER_BITS, search
from intarsia.models.glm5_next.products import Experts, Product

pytestmark = pytest.mark.gpu

WORKS = {
    "MXFP8, few rows": (Product("MXFP8", (2048, 1024), 2048, "together"), 8),
    "MXFP8, more rows": (Product("MXFP8", (2048, 1024), 2048, "together"), 64),
    "FP8 blocks, SwiGLU": (Product("FP8_PB_WO", (2048,), 2048, "swiglu"), 16),
    "BF16, apart": (Product("BF16", (1024, 1024), 128, "apart"), 32),
    "experts": (Experts("NVFP4", 32, 512, 1024, 4), 16),
}


@pytest.fixture
def device():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    place = torch.device("cuda", 0)
    if reason := choice.no_gluon(place):
        pytest.skip(reason)
    yield place
    tuning.install(place, None)


@pytest.fixture(scope="module")
def compilers():
    made = Compilers(torch.device("cuda", 0), "expanded", 6)
    yield made
    made.close()


@pytest.mark.parametrize("name", WORKS)
def test_candidates_that_run_give_the_defaults_bits(device, compilers, name):
    work, rows = WORKS[name]
    site = work.site(rows) if isinstance(work, Product) else work.site(rows, "expanded")
    trial = Workshop(device).trial(work, site)
    found = search(trial, HeldTimer(device), repeats=3, known=compilers(work, site))
    count = len(configurations(site.operation).candidates(site))
    assert found.tried + len(found.refused) == count
    assert OTHER_BITS not in found.refused.values(), found.refused
    assert found.tried > count // 2, found.refused
    assert 0 < found.found.us <= found.found.default_us


def test_what_is_installed_is_what_runs(device):
    work, rows = WORKS["MXFP8, few rows"]
    site = work.site(rows)
    calls = Workshop(device).trial(work, site).calls
    before = [call() for call in calls]
    tunable = configurations(site.operation)
    other = next(one for one in tunable.candidates(site) if one != tunable.default(site))
    tuning.install(device, Table("planted", "now", {site: Found(other, 1.0, 0.0, 2.0, 0.0)}))
    with patch.object(plan, "few", side_effect=AssertionError("the default was asked for")):
        after = [call() for call in calls]
    for ours, theirs in zip(after, before, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
