"""Sigmoid and SiLU: right, and the same wherever in a tensor a value lies."""

import pytest
import torch

from intarsia.kernels.elementwise import sigmoid, silu
from tests.kernels.steps import randn

EXACT = {sigmoid: lambda x: 1 / (1 + torch.exp(-x)), silu: lambda x: x / (1 + torch.exp(-x))}
VALUES = torch.cat([4 * randn(20_000), torch.tensor([-1e4, -100.0, -46.0, -0.0, 0.0, 46.0, 100.0, 1e4])])


@pytest.mark.parametrize("function", EXACT)
def test_values(function):
    got, exact = function(VALUES), EXACT[function](VALUES.double())
    torch.testing.assert_close(got.double(), exact, rtol=5e-7, atol=1e-38)
    assert got.isfinite().all()


@pytest.mark.parametrize("function", EXACT)
@pytest.mark.parametrize("piece", [1, 7, 16, 31, 33, 48])
def test_bits_do_not_depend_on_the_place_in_a_tensor(function, piece):
    whole = function(VALUES)
    assert torch.equal(torch.cat([function(part) for part in VALUES.split(piece)]), whole)
    assert torch.equal(function(VALUES.view(-1, 8).T).T.reshape(-1), whole)  # not contiguous
