"""Norms are formed in float32 and rounded once."""

import pytest
import torch

from intarsia.kernels.norm import layer_norm, rms_norm
from tests.kernels.steps import randn


def naive_rms(x, weight, eps):
    x, weight = x.double(), weight.double()
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def naive_layer(x, weight, bias, eps):
    x = x.double()
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()
    return scaled * weight.double() + bias.double()


@pytest.mark.parametrize("scale", [1e-4, 3e-3, 1.0, 1e4])
@pytest.mark.parametrize("eps", [1e-5, 1e-6])
def test_rms_norm(scale, eps):
    x, weight = scale * randn(20, 96), 1 + 0.3 * randn(96, seed=1)
    expected = naive_rms(x, weight, eps)
    torch.testing.assert_close(rms_norm(x, weight, eps).double(), expected, rtol=1e-5, atol=1e-7)


def test_the_epsilon_is_inside_the_root():
    x = torch.full((1, 8), 1e-3)
    got = rms_norm(x, torch.ones(8), 1e-6)
    torch.testing.assert_close(got, torch.full((1, 8), 2**-0.5))


@pytest.mark.parametrize("scale", [1e-3, 1.0])
def test_layer_norm(scale):
    x, weight, bias = scale * randn(20, 48) + 2 * scale, 1 + randn(48, seed=1), randn(48, seed=2)
    got = layer_norm(x, weight, bias, 1e-6)
    torch.testing.assert_close(got.double(), naive_layer(x, weight, bias, 1e-6), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_float32_weight_is_used_as_stored(dtype):
    """Values between two bfloat16 neighbours must reach the result, also when the rows are bfloat16."""
    weight = 1 + torch.arange(64) / 4096  # bfloat16 has steps of 1/128 here
    assert not torch.equal(weight.bfloat16().float(), weight)
    x = randn(200, 64).to(dtype)
    got, cast = rms_norm(x, weight, 1e-5), rms_norm(x, weight.bfloat16(), 1e-5)
    assert got.dtype == dtype
    assert not torch.equal(got, cast)
    got = layer_norm(x, weight, weight, 1e-6)
    assert not torch.equal(got, layer_norm(x, weight.bfloat16(), weight.bfloat16(), 1e-6))


def test_bfloat16_is_rounded_only_once():
    """Nearly all values are the exact ones rounded; float32 may end on the other side of a tie."""
    x, weight = randn(500, 64).bfloat16(), 1 + 0.3 * randn(64, seed=1)
    got = rms_norm(x, weight, 1e-5)
    rounded_twice = naive_rms(x, torch.ones(64), 1e-5).bfloat16().double() * weight.double()
    assert (got != naive_rms(x, weight, 1e-5).bfloat16()).float().mean() < 1e-3
    assert (got != rounded_twice.bfloat16()).float().mean() > 0.1
