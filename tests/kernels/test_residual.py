"""A residual addition with its norm, and the MTP layer's input: references, and the kernels interpreted."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch

from intarsia import formats
from intarsia.kernels.embedding import join_norms
from intarsia.kernels.norm import add_norm
from tests.kernels.steps import randn

ROWS, WIDTH, EPS = 5, 96, 1e-5

INTERPRETED = """
import torch
from intarsia.kernels.embedding import joint
from intarsia.kernels.norm import residual
from tests.kernels.test_residual import inputs

torch.set_num_threads(1)
for dtype, most in ((torch.float32, 1e-6), (torch.bfloat16, 0.04)):  # bfloat16: one step of numbers below 4
    x, y, weight, tokens, positions, table = inputs(dtype)
    expected, got = residual.add_norm(x, y, weight, 1e-5), residual._launch(x, y, weight, 1e-5)
    pairs = list(zip(expected, got, strict=True))
    given = (tokens, positions, table, x, (weight, weight + 1), 1e-5)
    pairs.append((joint.join_norms(*given), joint._launch(*given)))
    for expected, got in pairs:
        assert got.dtype == expected.dtype == dtype
        assert (got.float() - expected.float()).abs().max() <= most, (dtype, got, expected)
"""


def inputs(dtype=torch.float32):
    x, y, weight = randn(ROWS, WIDTH).to(dtype), randn(ROWS, WIDTH, seed=1), 1 + 0.1 * randn(WIDTH, seed=2)
    tokens = torch.tensor([3, 0, 6, 2, 1])
    positions = torch.tensor([0, 5, 6, 7, 0], dtype=torch.int32)
    return x, y, weight, tokens, positions, randn(7, WIDTH, seed=3).to(dtype)


def exact_norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight.double()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sum_is_rounded_once_and_its_norm_is_that_of_the_rounded_sum(dtype):
    x, y, weight, *_ = inputs(dtype)
    total, normed = add_norm(x, y, weight, EPS)
    assert torch.equal(total, (x.double() + y.double()).float().to(dtype))
    expected = exact_norm(total.double(), weight)
    torch.testing.assert_close(
        normed.double(), expected, rtol=2**-8 if dtype == torch.bfloat16 else 1e-6, atol=1e-6
    )


@pytest.mark.parametrize("stored", [False, True])
def test_the_embedding_counts_as_zero_at_position_zero(stored):
    x, _, weight, tokens, positions, table = inputs()
    given = formats.get("MXFP8").encode(table) if stored else table
    got = join_norms(tokens, positions, given, x, (weight, weight + 1), EPS)
    wide = formats.get("MXFP8").decode(given, torch.float32) if stored else table
    rows = wide[tokens].double() * (positions != 0).unsqueeze(1)
    expected = torch.cat([exact_norm(rows, weight), exact_norm(x.double(), weight + 1)], -1)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-6)
    assert (got[[0, 4], :WIDTH] == 0).all()


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
def test_the_kernels_give_what_the_references_give():
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
