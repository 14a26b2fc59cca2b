"""Beta, decay and gate of linear attention on a GPU: bits of single products, however many rows there are."""

import pytest
import torch

from intarsia.formats.stored import Stored
from intarsia.kernels.kda import Matrices, beta_decay_gate, decay_and_gate, low_rank
from intarsia.kernels.linear import linears, linears_apart
from tests.kernels.steps import randn

pytestmark = pytest.mark.gpu

BFLOAT16 = torch.bfloat16
HEADS = 4


@pytest.fixture(autouse=True)
def needs_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


def gate_operands(rows, heads=HEADS):
    """Rows [R, 128] twice, of tensors twice as wide, and both matrices."""
    wide = [randn(rows, 256, seed=seed).to("cuda", BFLOAT16)[:, 64:192] for seed in (1, 2)]
    return (*wide, *[randn(128 * heads, 128, seed=seed).to("cuda", BFLOAT16) for seed in (3, 4)])


@pytest.mark.parametrize("rows", [*range(1, 18), 31, 32, 33, 48, 63, 64, 65, 200])
def test_decay_and_gate_have_the_bits_of_single_products(rows):
    f, g, f_b, g_b = gate_operands(rows)
    expected = linears_apart((f, g), (f_b, g_b))
    for got, whole, x, matrix in zip(
        decay_and_gate(f, g, f_b, g_b), expected, (f, g), (f_b, g_b), strict=True
    ):
        assert torch.equal(got, whole)
        exact = x.double() @ matrix.double().T
        assert float((got.double() - exact).abs().max() / exact.abs().max()) <= 4e-3
    stored = [Stored("BF16", {"weight": matrix}, tuple(matrix.shape)) for matrix in (f_b, g_b)]
    alone = decay_and_gate(f[-1:], g[-1:], *stored)
    assert torch.equal(torch.cat(alone), torch.stack([part[-1] for part in expected]))


@pytest.mark.parametrize(("rows", "real"), [(8, 0), (8, 5), (16, 9), (48, 33), (64, 1)])
def test_padding_rows_reach_neither_decay_nor_gate(rows, real):
    f, g, f_b, g_b = gate_operands(rows)
    outs = [torch.full((rows, HEADS * 128), torch.nan, dtype=BFLOAT16, device="cuda") for _ in "fg"]
    expected = decay_and_gate(f[:real], g[:real], f_b, g_b) if real else outs
    f[real:], g[real:] = torch.nan, torch.inf
    used = torch.tensor([real], dtype=torch.int32, device="cuda")
    low_rank.launch(f, g, f_b, g_b, *outs, used)
    for got, whole in zip(outs, expected, strict=True):
        assert torch.equal(got[:real], whole[:real])
        assert (got[real:] == 0).all()


def test_captured_gates_have_the_eager_bits():
    f, g, f_b, g_b = gate_operands(8, heads=64)
    expected = decay_and_gate(f, g, f_b, g_b)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = decay_and_gate(f, g, f_b, g_b)
    for out in captured:
        out.fill_(torch.nan)
    graph.replay()
    assert all(torch.equal(got, whole) for got, whole in zip(captured, expected, strict=True))


def low_rank_operands(rows, heads, hidden):
    """Rows of a tensor twice as wide, and the five matrices, the first as it is stored."""
    x = randn(rows, 2 * hidden, seed=1).to("cuda", BFLOAT16)[:, hidden:]
    sizes = [(heads, hidden), (128, hidden), (128, hidden), (heads * 128, 128), (heads * 128, 128)]
    matrices = [(0.1 * randn(*size, seed=2 + i)).to("cuda", BFLOAT16) for i, size in enumerate(sizes)]
    return x, Matrices(Stored("BF16", {"weight": matrices[0]}, sizes[0]), *matrices[1:])


@pytest.mark.parametrize(("heads", "hidden"), [(32, 4096), (16, 512), (4, 1024), (64, 4096)])
def test_beta_decay_and_gate_have_the_bits_of_single_products_however_many_rows(heads, hidden):
    x, w = low_rank_operands(17, heads, hidden)
    beta, f, g = linears(x, (w.b, w.f_a, w.g_a), (torch.float32, None, None))
    expected = (beta, *decay_and_gate(f, g, w.f_b, w.g_b))
    for rows in range(1, 18):
        for got, whole in zip(beta_decay_gate(x[:rows], w), expected, strict=True):
            assert torch.equal(got, whole[:rows]), rows


@pytest.mark.parametrize(("rows", "real"), [(1, 0), (8, 0), (8, 3), (5, 5)])
def test_padding_rows_reach_no_range(rows, real):
    x, w = low_rank_operands(rows, 32, 4096)
    nothing = [x[:0, :columns] for columns in (32, 4096, 4096)]
    expected = beta_decay_gate(x[:real], w) if real else nothing
    x[real:] = torch.nan
    used = torch.tensor([real], dtype=torch.int32, device="cuda")
    for got, whole in zip(beta_decay_gate(x, w, used=used), expected, strict=True):
        assert torch.equal(got[:real], whole)
        assert (got[real:] == 0).all()
