"""The kernels of hyper-connections on a GPU: against double precision, and a row's bits its own."""

import pytest
import torch
from torch import Tensor

from intarsia.kernels import choice
from intarsia.kernels import hyper_connection as hyper
from intarsia.kernels.embedding import join_norms
from intarsia.kernels.hyper_connection import launch
from intarsia.kernels.norm import add_norm
from tests.kernels.steps import randn

pytestmark = pytest.mark.gpu

RULE = hyper.Rule(norm_eps=1e-5, eps=1e-6, iterations=20)
COUNTS = [*range(1, 18), 32, 64, 1024]


@pytest.fixture(autouse=True)
def needs_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(scope="module", autouse=True)
def poisoned_memory():
    """Memory that torch hands out again holds NaN, so that an output nobody writes shows."""
    if torch.cuda.is_available():
        torch.full((64 << 20,), torch.nan, device="cuda")
        torch.cuda.synchronize()


def numbers(*shape: int, seed: int) -> Tensor:
    return randn(*shape, seed=seed).cuda()


def weights(width: int, dtype: torch.dtype = torch.bfloat16, spread: float = 1.0) -> hyper.Site:
    return hyper.Site(
        fn=(numbers(24, 4 * width, seed=1) / (4 * width) ** 0.5).to(dtype),
        base=spread * numbers(24, seed=2),
        scale=1 + 0.3 * numbers(3, seed=3),
        norm=1 + 0.1 * numbers(width, seed=4),
    )


def inputs(rows: int, width: int) -> tuple[Tensor, hyper.Pending]:
    streams = numbers(rows, 4, width, seed=5).bfloat16()
    coefficients = hyper.HyperMix(
        pre=numbers(rows, 4, seed=6),
        post=1 + 0.5 * numbers(rows, 4, seed=7),
        mixing=torch.softmax(numbers(rows, 4, 4, seed=8), -1),
    )
    return streams, hyper.Pending(numbers(rows, width, seed=9), coefficients)


def largest(got: Tensor, expected: Tensor) -> float:
    return float((got.double() - expected.double()).abs().max() / expected.double().abs().max())


def exact_site(streams: Tensor, site: hyper.Site) -> tuple[Tensor, hyper.HyperMix]:
    """Next input and coefficients of up-to-date streams, in double precision."""
    wide = streams.double().flatten(1)
    m = wide @ site.fn.double().T * torch.rsqrt(wide.square().mean(1, keepdim=True) + RULE.norm_eps)
    m = (
        m * site.scale.double().repeat_interleave(torch.tensor([4, 4, 16], device="cuda"))
        + site.base.double()
    )
    pre, post = m[:, :4].sigmoid() + RULE.eps, 2 * m[:, 4:8].sigmoid()
    matrix = torch.softmax(m[:, 8:].view(-1, 4, 4), -1) + RULE.eps
    matrix = matrix / (matrix.sum(1, keepdim=True) + RULE.eps)
    for _ in range(RULE.iterations - 1):
        matrix = matrix / (matrix.sum(2, keepdim=True) + RULE.eps)
        matrix = matrix / (matrix.sum(1, keepdim=True) + RULE.eps)
    u = torch.einsum("rn,rnd->rd", pre, streams.double())
    x = u * torch.rsqrt(u.square().mean(1, keepdim=True) + RULE.norm_eps) * site.norm.double()
    return x, hyper.HyperMix(pre, post, matrix)


@pytest.mark.parametrize("width", [128, 512, 4096])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("spread", [0.0, 1.0, 8.0])
def test_sites_are_right(width, dtype, spread):
    streams, pending = inputs(37, width)
    site = weights(width, dtype, spread)
    for before in (None, pending):
        given = streams if before is not None else streams[:, :1].expand(-1, 4, -1)
        after, x, coefficients = launch.site(given, before, site, RULE)
        if before is not None:
            updated = hyper.update(given, before.y, before.coefficients)
            # One rounding of the same float32 sums; in another order they may fall to either side.
            assert largest(after, updated) <= 2**-8
            assert (after != updated).float().mean() < 1e-3
        expected, mix = exact_site(after, site)
        assert largest(x, expected) <= 8e-3
        for name in ("pre", "post", "mixing"):
            ours, theirs = getattr(coefficients, name), getattr(mix, name)
            torch.testing.assert_close(ours.double(), theirs, rtol=3e-4, atol=1e-6)


@pytest.mark.parametrize("width", [128, 4096])
def test_the_last_site_is_right(width):
    streams, pending = inputs(37, width)
    norm = weights(width).norm
    after, hidden = launch.finish(streams, pending, norm, 1e-5)
    updated = hyper.update(streams, pending.y, pending.coefficients)
    assert largest(after, updated) <= 2**-8
    mean = after.double().mean(1)
    expected = mean * torch.rsqrt(mean.square().mean(1, keepdim=True) + 1e-5) * norm.double()
    assert largest(hidden, expected) <= 8e-3


def flat(result) -> list[Tensor]:
    parts = []
    for part in result:
        parts += [part.pre, part.post, part.mixing] if isinstance(part, hyper.HyperMix) else [part]
    return parts


def both(streams, pending, site):
    done = launch.site(streams, pending, site, RULE)
    pending = hyper.Pending(pending.y + 0, pending.coefficients)  # a block runs between two sites
    return [*flat(done), *launch.finish(done[0], hyper.Pending(pending.y, done[2]), site.norm, 1e-5)]


def first_rows(streams, pending, begin, end):
    c = pending.coefficients
    coefficients = hyper.HyperMix(c.pre[begin:end], c.post[begin:end], c.mixing[begin:end])
    return streams[begin:end], hyper.Pending(pending.y[begin:end], coefficients)


def test_a_rows_bits_do_not_depend_on_other_rows():
    streams, pending = inputs(1024, 4096)
    site = weights(4096)
    whole = both(streams, pending, site)
    wrong = []
    for count in COUNTS:
        for begin in {0, 1024 - count, 301 % (1025 - count)}:
            got = both(*first_rows(streams, pending, begin, begin + count), site)
            if not all(torch.equal(a, b[begin : begin + count]) for a, b in zip(got, whole, strict=True)):
                wrong.append((count, begin))
    assert not wrong


def test_the_first_site_takes_one_stream_for_all():
    streams, _ = inputs(16, 4096)
    site = weights(4096)
    shared = streams[:, :1].expand(-1, 4, -1)
    one, all_four = (launch.site(x, None, site, RULE) for x in (shared, shared.contiguous()))
    for a, b in zip(flat(one), flat(all_four), strict=True):
        assert torch.equal(a, b)


def test_dispatch_and_a_captured_graph():
    streams, pending = inputs(16, 4096)
    site = weights(4096)
    expected = both(streams, pending, site)
    assert all(
        torch.equal(a, b)
        for a, b in zip(flat(hyper.site(streams, pending, site, RULE)), expected, strict=False)
    )
    with choice.forced("reference"):
        reference = hyper.site(streams, pending, site, RULE)
    assert largest(reference[1], expected[1]) <= 2e-2
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = both(streams, pending, site)
    for part in captured:
        part.fill_(torch.nan)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, expected, strict=True))


@pytest.mark.parametrize("rows", [1, 7, 16, 64])
def test_residual_norms_and_the_mtp_input(rows):
    x, y = numbers(rows, 4096, seed=11).bfloat16(), numbers(rows, 4096, seed=12)
    weight, table = 1 + 0.1 * numbers(4096, seed=13), numbers(50, 4096, seed=14).bfloat16()
    tokens = torch.arange(rows, device="cuda") % 50
    positions = torch.arange(rows, dtype=torch.int32, device="cuda") % 3
    given = (tokens, positions, table, x, (weight, weight + 1), 1e-5)
    got = [*add_norm(x, y, weight, 1e-5), join_norms(*given)]
    with choice.forced("reference"):
        expected = [*add_norm(x, y, weight, 1e-5), join_norms(*given)]
    assert torch.equal(got[0], expected[0])
    for ours, theirs in zip(got[1:], expected[1:], strict=True):
        assert largest(ours, theirs) <= 8e-3
    assert (got[2][::3, :4096] == 0).all()
