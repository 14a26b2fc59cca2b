"""The router's kernels on a GPU: the choice of exact scores, and a row's bits its own."""

import pytest
import torch
from torch import Tensor

from intarsia.kernels import choice
from intarsia.kernels.router import Routing, launch, route
from intarsia.kernels.rows import NO_STREAM, Rows
from tests.kernels.steps import randn

pytestmark = pytest.mark.gpu

TOP, SCALING = 8, 2.5
COUNTS = [*range(1, 18), 32, 64, 65, 128, 144, 500]


@pytest.fixture(autouse=True)
def needs_a_gpu():
    reason = choice.no_triton(torch.device("cuda")) if torch.cuda.is_available() else "needs a CUDA device"
    if reason:
        pytest.skip(reason)


def inputs(rows: int, experts: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    x = randn(rows, width, seed=1).bfloat16().cuda()
    weight = (randn(experts, width, seed=2) * width**-0.5).to(dtype).cuda()
    return x, weight, (0.1 * randn(experts, seed=3)).cuda()


def step(rows: int, real: int | None = None) -> Rows:
    real = rows if real is None else real
    streams = torch.zeros(rows, dtype=torch.int32)
    streams[real:] = NO_STREAM
    return Rows(
        tokens=torch.zeros(rows, dtype=torch.int64, device="cuda"),
        positions=torch.zeros(rows, dtype=torch.int32, device="cuda"),
        streams=streams.cuda(),
        starts=torch.tensor([0, real], dtype=torch.int32, device="cuda"),
        page_table=torch.zeros(1, 4, dtype=torch.int32, device="cuda"),
        recurrent_segments=0,
    )


def run(x: Tensor, weight: Tensor, bias: Tensor, rows: Rows) -> Routing:
    return launch.launch(x, weight, bias, rows, top=TOP, scaling=SCALING)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("experts", "width"), [(288, 4096), (12, 128), (40, 1040)])
def test_the_best_by_exact_scores_are_chosen(experts, width, dtype):
    x, weight, bias = inputs(1024, experts, width, dtype)
    got = run(x, weight, bias, step(1024))
    chance = torch.sigmoid(x.double() @ weight.double().T)
    biased = chance + bias
    picked = biased.gather(1, got.experts.long())
    ordered = biased.sort(1, descending=True).values[:, :TOP]
    # Near ties may swap; what is chosen is as good as the best to float32's rounding.
    assert (picked - ordered).abs().max() < 2e-6
    assert all(len(set(row)) == TOP for row in got.experts.tolist())
    weights = chance.gather(1, got.experts.long())
    expected = weights / (weights.sum(1, keepdim=True) + 1e-20) * SCALING
    assert ((got.weights - expected).abs() / expected).max() < 1e-5


def test_equal_scores_go_to_the_lowest_expert():
    x, weight, _ = inputs(64, 288, 4096, torch.bfloat16)
    weight = weight[torch.arange(288, device="cuda") % 5]
    got = run(x, weight, torch.zeros(288, device="cuda"), step(64))
    order = (x.double() @ weight[:5].double().T).argsort(1, descending=True)
    assert torch.equal(got.experts, (order[:, :1] + 5 * torch.arange(TOP, device="cuda")).int())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_bits_of_a_row_do_not_depend_on_other_rows(dtype):
    x, weight, bias = inputs(1024, 288, 4096, dtype)
    whole = run(x, weight, bias, step(1024))
    wrong = []
    for count in COUNTS:
        for first in (0, 301, 1024 - count):
            part = slice(first, first + count)
            got = run(x[part], weight, bias, step(count))
            if not (
                torch.equal(got.experts, whole.experts[part])
                and torch.equal(got.weights, whole.weights[part])
            ):
                wrong.append((count, first))
    assert not wrong


def test_padding_rows_choose_nothing_whatever_they_hold():
    x, weight, bias = inputs(16, 288, 4096, torch.bfloat16)
    clean = run(x, weight, bias, step(16, 5))
    x[5:] = torch.nan
    got = run(x, weight, bias, step(16, 5))
    assert torch.equal(got.experts, clean.experts)
    assert torch.equal(got.weights, clean.weights)
    assert (got.experts[5:] == -1).all()
    assert (got.weights[5:] == 0).all()


def test_a_captured_graph_gives_the_eager_bits_and_dispatch_takes_the_kernels():
    x, weight, bias = inputs(8, 288, 4096, torch.bfloat16)
    rows = step(8)
    expected = run(x, weight, bias, rows)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = route(x, weight, bias, rows, top=TOP, scaling=SCALING)
    for _ in range(3):
        got.weights.fill_(torch.nan)
        graph.replay()
        assert torch.equal(got.weights, expected.weights)
        assert torch.equal(got.experts, expected.experts)
