"""Products with wide tiles of x on a GPU: the bits of the other forms, for every count of rows."""

import pytest
import torch
from torch import Tensor

from intarsia import formats
from intarsia.formats.stored import Stored
from intarsia.kernels import choice
from intarsia.kernels.linear import gluon, linear_swiglu, plan
from tests.kernels.steps import randn

pytestmark = pytest.mark.gpu

MOST = 600  # rows: the last tile part full
COUNTS = (1, 17, 64, 129, 256, 257, 600)
FORMS = {
    "MXFP8": [
        plan.Wide(256, 3, 2, 1024, True),
        plan.Wide(256, 4, 4, 512, False),
        plan.Wide(128, 4, 3, 128, False),
    ],
    "FP8_PB_WO": [plan.Wide(128, 4, 2, 1024, True), plan.Wide(128, 3, 4, 128, True)],
    "BF16": [plan.Wide(256, 4, 2, 1024, True)],
}


@pytest.fixture(autouse=True)
def needs_a_hopper():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    if reason := choice.no_gluon(torch.device("cuda", torch.cuda.current_device())):
        pytest.skip(reason)


def gpu(*shape: int, seed: int) -> Tensor:
    return randn(*shape, seed=seed).cuda()


def encoded(name: str, *shape: int, seed: int) -> Stored:
    return formats.get(name).encode(gpu(*shape, seed=seed))


def products(x: Tensor, weights: list[Stored], dtypes, limit=None) -> list[Tensor]:
    widths = [weight.rows // (1 if limit is None else 2) for weight in weights]
    outs = [
        torch.full((len(x), width), torch.nan, dtype=dtype, device="cuda")
        for width, dtype in zip(widths, dtypes, strict=True)
    ]
    gluon.launch([x], weights, outs, limit=limit)
    return outs


def few_at_a_time(x: Tensor, weights: list[Stored], dtypes, limit=None) -> list[Tensor]:
    """The same from the kernels for up to eight rows."""
    parts = [products(x[i : i + 8], weights, dtypes, limit) for i in range(0, len(x), 8)]
    return [torch.cat(outs) for outs in zip(*parts, strict=True)]


@pytest.mark.parametrize(
    ("name", "sizes", "columns", "limit", "forms"),
    [
        ("MXFP8", (8200,), 384, None, (2,)),  # one range, no whole tile
        ("MXFP8", (272,), 2048, None, (0, 2)),  # eight ranges
        ("MXFP8", (64, 512, 200), 4096, None, (0,)),
        ("MXFP8", (512,), 512, 3.0, (0,)),
        ("FP8_PB_WO", (8200,), 512, None, (0, 1)),  # two ranges
        ("FP8_PB_WO", (200,), 384, None, (0,)),  # three blocks
        ("FP8_PB_WO", (64, 512, 200), 2048, None, (1,)),
        ("FP8_PB_WO", (1024,), 2048, 3.0, (0,)),
        ("BF16", (520,), 4096, None, (0,)),
    ],
)
def test_wide_tiles_have_the_bits_of_few_rows(name, sizes, columns, limit, forms, monkeypatch):
    weights = [encoded(name, size, columns, seed=30 + i) for i, size in enumerate(sizes)]
    x = gpu(MOST, columns, seed=40).bfloat16() * 0.2
    dtypes = [torch.float32, torch.bfloat16, torch.float32][: len(sizes)]
    whole = few_at_a_time(x, weights, dtypes, limit)
    wrong = []
    for form in [FORMS[name][i] for i in forms]:
        monkeypatch.setattr(plan, "shape", lambda *_, form=form: form)
        for count in COUNTS:
            for first in {0, MOST - count}:
                outs = products(x[first : first + count], weights, dtypes, limit)
                expected = [one[first : first + count] for one in whole]
                if not all(map(torch.equal, outs, expected)):
                    wrong.append((form, count, first))
    assert not wrong


@pytest.mark.parametrize("name", ["MXFP8", "FP8_PB_WO"])
def test_rows_that_are_not_used_become_zeros(name, monkeypatch):
    stored = encoded(name, 512, 2048, seed=50)
    x = gpu(300, 2048, seed=51).bfloat16()
    whole = linear_swiglu(x, stored, 3.0)
    used = torch.tensor([130], dtype=torch.int32, device="cuda")
    x[130:] = torch.nan
    for form in FORMS[name][:1]:
        monkeypatch.setattr(plan, "shape", lambda *_, form=form: form)
        out = linear_swiglu(x, stored, 3.0, used=used)
        assert torch.equal(out[:130], whole[:130])
        assert (out[130:] == 0).all()


def test_a_replayed_graph_gives_what_the_launches_give(monkeypatch):
    weights = [encoded(name, 256, 2048, seed=60) for name in FORMS]
    x = gpu(272, 2048, seed=61).bfloat16()

    def step():
        found = []
        for weight in weights:
            monkeypatch.setattr(plan, "shape", lambda *_, form=FORMS[weight.format][0]: form)
            found += products(x, [weight], [torch.bfloat16])
        return found

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        outs = step()
    for seed in (62, 63):
        x.copy_(gpu(272, 2048, seed=seed).bfloat16())
        graph.replay()
        assert all(torch.equal(out, again) for out, again in zip(outs, step(), strict=True))
