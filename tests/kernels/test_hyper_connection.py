"""Hyper-connections against loops in double precision, and what Sinkhorn's iteration promises."""

import math

import pytest
import torch

from intarsia.kernels.hyper_connection import HyperMix, collect, merge, mix, update
from tests.kernels.steps import randn

WIDTH = 24


def site(streams, seed=0, spread=1.0):
    mixes = streams * (streams + 2)
    fn = randn(mixes, streams * WIDTH, seed=seed + 1) / (streams * WIDTH) ** 0.5
    return fn, spread * randn(mixes, seed=seed + 2), 1 + 0.5 * randn(3, seed=seed + 3)


def naive_mix(streams, fn, base, scale, norm_eps, eps, iterations):
    """One row at a time, entry by entry."""
    result = []
    for row in streams.double():
        count = row.shape[0]
        flat = row.flatten()
        rms = math.sqrt(float(flat.square().mean()) + norm_eps)
        m = [float(f @ flat) / rms for f in fn.double()]
        value = [m[i] * float(scale[min(i // count, 2)]) + float(base[i]) for i in range(count * (count + 2))]
        pre = [1 / (1 + math.exp(-value[i])) + eps for i in range(count)]
        post = [2 / (1 + math.exp(-value[count + i])) for i in range(count)]
        matrix = []
        for i in range(count):
            logits = value[2 * count + i * count : 2 * count + (i + 1) * count]
            powers = [math.exp(x - max(logits)) for x in logits]
            matrix.append([x / sum(powers) + eps for x in powers])
        for iteration in range(iterations):
            if iteration:
                matrix = [[x / (sum(line) + eps) for x in line] for line in matrix]
            sums = [sum(line[j] for line in matrix) for j in range(count)]
            matrix = [[line[j] / (sums[j] + eps) for j in range(count)] for line in matrix]
        result.append((pre, post, matrix))
    return [torch.tensor(part, dtype=torch.float64) for part in zip(*result, strict=True)]


@pytest.mark.parametrize("streams", [2, 3, 4])
@pytest.mark.parametrize("iterations", [1, 2, 20])
@pytest.mark.parametrize(("scale", "spread", "eps"), [(1.0, 1.0, 1e-6), (3e-3, 8.0, 1e-6), (1.0, 14.0, 1e-3)])
def test_coefficients(streams, iterations, scale, spread, eps):
    x = scale * randn(20, streams, WIDTH)
    fn, base, scales = site(streams, spread=spread)
    got = mix(x, fn, base, scales, norm_eps=1e-5, eps=eps, iterations=iterations)
    pre, post, mixing = naive_mix(x, fn, base, scales, 1e-5, eps, iterations)
    for ours, exact in ((got.pre, pre), (got.post, post), (got.mixing, mixing)):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), exact, rtol=2e-4, atol=1e-7)


@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0])
def test_mixing_becomes_doubly_stochastic(spread):
    """Columns exactly, since they come last; rows by iteration."""
    fn, base, scales = site(4, spread=spread)
    got = mix(randn(64, 4, WIDTH), fn, base, scales, norm_eps=1e-5, eps=1e-6, iterations=20).mixing
    assert (got > 0).all()
    torch.testing.assert_close(got.sum(1), torch.ones(64, 4), rtol=0, atol=5e-6)
    torch.testing.assert_close(got.sum(2), torch.ones(64, 4), rtol=0, atol=2e-2)
    one = mix(randn(64, 4, WIDTH), fn, base, scales, norm_eps=1e-5, eps=1e-6, iterations=1).mixing
    if spread:
        assert (got.sum(2) - 1).abs().max() < (one.sum(2) - 1).abs().max()


def test_a_mixed_constant_stays_what_it_is():
    """Equal streams stay equal under a doubly stochastic mix: the residual path keeps its size."""
    fn, base, scales = site(4)
    x = randn(16, 1, WIDTH).expand(-1, 4, -1)
    coefficients = mix(x, fn, base, scales, norm_eps=1e-5, eps=1e-6, iterations=20)
    torch.testing.assert_close(update(x, torch.zeros(16, WIDTH), coefficients), x, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_collect_update_and_merge(dtype):
    x, y = randn(16, 4, WIDTH).to(dtype), randn(16, WIDTH, seed=1)
    c = HyperMix(torch.rand(16, 4), 2 * torch.rand(16, 4), torch.rand(16, 4, 4))
    exact = x.double()
    expected = {
        "collect": sum(c.pre[:, n, None].double() * exact[:, n] for n in range(4)),
        "update": torch.stack(
            [
                c.post[:, j, None].double() * y.double()
                + sum(c.mixing[:, i, j, None].double() * exact[:, i] for i in range(4))
                for j in range(4)
            ],
            1,
        ),
        "merge": sum(exact[:, n] for n in range(4)) / 4,
    }
    got = {"collect": collect(x, c.pre), "update": update(x, y, c), "merge": merge(x)}
    for name, value in got.items():
        assert value.dtype == dtype, name
        if dtype == torch.bfloat16:  # one rounding of the exact value, but where float32 sits on a tie
            assert (value != expected[name].bfloat16()).float().mean() < 0.01
        rtol = 1e-2 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(value.double(), expected[name], rtol=rtol, atol=1e-5)


def test_bits_of_a_row_do_not_depend_on_other_rows():
    fn, base, scales = site(4, spread=3.0)
    x, y = randn(96, 4, WIDTH), randn(96, WIDTH, seed=5)

    def block(rows):
        c = mix(x[rows], fn, base, scales, norm_eps=1e-5, eps=1e-6, iterations=20)
        return collect(x[rows], c.pre), update(x[rows], y[rows], c)

    whole = block(slice(0, 96))
    for rows in (slice(0, 16), slice(16, 32), slice(32, 96), slice(80, 96)):
        for part, all_rows in zip(block(rows), whole, strict=True):
            assert torch.equal(part, all_rows[rows])
