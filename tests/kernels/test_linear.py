"""Products with weights in every stored format, and rows of the embedding."""

import pytest
import torch

from intarsia import formats
from intarsia.formats.stored import Stored
from intarsia.kernels.embedding import embed
from intarsia.kernels.linear import linear
from intarsia.kernels.weights import dense
from tests.kernels.steps import randn

WEIGHT = randn(256, 128, seed=1)


@pytest.fixture(params=formats.names())
def stored(request) -> Stored:
    return formats.get(request.param).encode(WEIGHT)


def _value(weight) -> torch.Tensor:
    return formats.get(weight.format).decode(weight, torch.float32).double()


def test_a_product_is_that_of_the_decoded_weight(stored):
    x = randn(32, 128)
    got = linear(x, stored)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), x.double() @ _value(stored).T, rtol=0, atol=5e-5)
    # The format is really in use: only F32 gives back the weight itself.
    assert torch.equal(_value(stored).float(), WEIGHT) == (stored.format == "F32")


def test_bfloat16_rows_give_bfloat16_or_wide_partial_sums(stored):
    x = randn(16, 128).bfloat16()
    exact = x.double() @ _value(stored).T
    narrow, wide = linear(x, stored), linear(x, stored, out_dtype=torch.float32)
    assert narrow.dtype == torch.bfloat16
    assert wide.dtype == torch.float32
    torch.testing.assert_close(wide.double(), exact, rtol=0, atol=5e-5)
    # A format with more than 8 bits of significand loses some of them on the way to bfloat16.
    torch.testing.assert_close(narrow.double(), exact, rtol=1e-2, atol=0.3)
    assert not torch.equal(narrow.float(), wide)


def test_a_plain_tensor_is_a_weight_too():
    x = randn(16, 128)
    torch.testing.assert_close(linear(x, WEIGHT).double(), x.double() @ WEIGHT.double().T, rtol=0, atol=5e-5)
    assert dense(WEIGHT, torch.float32) is WEIGHT


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(256, 128), (4, 64), (1, 32), (24, 256), (5, 80), (8, 48)])
def test_bits_of_a_row_do_not_depend_on_how_many_rows_there_are(dtype, shape):
    """For multiples of 16 rows, at any place among them: what padding to 16 rests on."""
    weight, x = randn(*shape, seed=2).to(dtype), randn(128, shape[1]).to(dtype)
    whole = linear(x, weight)
    for count in range(16, 128, 16):
        for first in (0, 16, 128 - count):
            assert torch.equal(linear(x[first : first + count], weight), whole[first : first + count])
    order = torch.randperm(128, generator=torch.Generator().manual_seed(0))
    assert torch.equal(linear(x[order], weight), whole[order])


def test_embedding_rows_are_gathered_from_any_format(stored):
    tokens = torch.tensor([0, 255, 7, 7, 128])
    got = embed(tokens, stored, torch.float32)
    assert torch.equal(got.double(), _value(stored)[tokens])
    assert embed(tokens, stored, torch.bfloat16).dtype == torch.bfloat16


def test_embedding_rows_of_a_plain_tensor():
    tokens = torch.tensor([3, 0, 3])
    assert torch.equal(embed(tokens, WEIGHT, torch.float32), WEIGHT[tokens])
    assert torch.equal(embed(tokens, WEIGHT.bfloat16(), torch.float32), WEIGHT[tokens].bfloat16().float())
