"""Convolution, gates and output norm of linear attention."""

import pytest
import torch
from torch.nn.functional import conv1d, silu

from intarsia.kernels.kda import convolve, gated_norm, log_decay, unit_heads
from tests.kernels.steps import padded, randn, step

CHANNELS = 24


def whole(raw, taps):
    """The convolution of a whole sequence by torch, in double precision."""
    count = taps.shape[1]
    columns = torch.nn.functional.pad(raw.double().T, (count - 1, 0)).unsqueeze(0)
    return silu(conv1d(columns, taps.double().unsqueeze(1), groups=taps.shape[0])[0].T)


def window(streams, taps, rows=1):
    """Rings as a state allocates them, poisoned: what lies before the sequence must not be read from them."""
    return torch.full((streams, taps - 1 + rows, CHANNELS), torch.nan)


@pytest.mark.parametrize("taps", [2, 3, 4])
@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("counts", [(70,), (1,) * 70, (1, 2, 3, 4, 5, 55), (69, 1)])
def test_convolution_in_pieces(taps, recurrent, counts):
    raw, weight = randn(70, CHANNELS), randn(CHANNELS, taps, seed=1)
    ring = window(1, taps, rows=5)
    got, begin = [], 0
    for count in counts:
        rows = step((0, begin, count), recurrent=recurrent)
        got.append(convolve(padded(raw[begin : begin + count]), weight, ring, rows)[:count])
        begin += count
    result = torch.cat(got)
    torch.testing.assert_close(result.double(), whole(raw, weight), rtol=1e-5, atol=1e-5)
    assert result.dtype == torch.float32


def test_convolution_of_streams_side_by_side_and_rows_taken_back():
    weight = randn(CHANNELS, 4, seed=1)
    raw = [randn(30, CHANNELS, seed=s) for s in (2, 3)]
    ring = window(2, 4, rows=3)
    first = padded(torch.cat([raw[0][:7], raw[1][:2]]))
    out = convolve(first, weight, ring, step((0, 0, 7), (1, 0, 2)))
    torch.testing.assert_close(out[:7].double(), whole(raw[0], weight)[:7], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out[7:9].double(), whole(raw[1], weight)[:2], rtol=1e-5, atol=1e-5)
    # Two wrong rows of stream 0 are written after a right one, and taken back by beginning again before them.
    wrong = torch.cat([raw[0][7:8], torch.full((2, CHANNELS), 1e9)])
    convolve(padded(wrong), weight, ring, step((0, 7, 3), recurrent=True))
    out = convolve(padded(raw[0][8:11]), weight, ring, step((0, 8, 3), recurrent=True))
    torch.testing.assert_close(out[:3].double(), whole(raw[0], weight)[8:11], rtol=1e-5, atol=1e-5)
    out = convolve(padded(raw[1][2:9]), weight, ring, step((1, 2, 7)))
    torch.testing.assert_close(out[:7].double(), whole(raw[1], weight)[2:9], rtol=1e-5, atol=1e-5)


def test_log_decay_lies_between_the_bound_and_zero():
    f, a_log, bias = 20 * randn(32, 3 * 8), randn(3, seed=1), randn(24, seed=2)
    got = log_decay(f, a_log, bias, -5.0)
    rate = a_log.double().exp().repeat_interleave(8)
    expected = -5 / (1 + torch.exp(-rate * (f.double() + bias.double())))
    assert got.shape == (32, 3, 8)
    torch.testing.assert_close(got.flatten(1).double(), expected, rtol=1e-5, atol=1e-7)
    assert (got <= 0).all()
    assert (got >= -5).all()
    assert got.min() < -4.99
    assert got.max() > -0.01


@pytest.mark.parametrize("scale", [1e-4, 1e-3, 1.0, 1e3])
def test_unit_heads(scale):
    x = scale * randn(16, 3 * 8)
    split = x.double().view(16, 3, 8)
    expected = split / (split.square().sum(-1, keepdim=True) + 1e-6).sqrt()
    torch.testing.assert_close(unit_heads(x, 3).double(), expected, rtol=1e-5, atol=1e-7)
    assert unit_heads(torch.zeros(16, 24), 3).abs().max() == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gated_norm(dtype):
    o, z, weight = 0.01 * randn(16, 3, 8), 3 * randn(16, 24, seed=1), 1 + 0.3 * randn(8, seed=2)
    exact = o.double() / (o.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    expected = exact.flatten(1) / (1 + torch.exp(-z.double()))
    got = gated_norm(o, z, weight, 1e-5, dtype)
    assert got.dtype == dtype
    if dtype == torch.float32:
        torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-7)
    else:
        assert (got != expected.bfloat16()).float().mean() < 0.01
