"""Which experts are chosen, with what weights, against plain loops in double precision."""

import math

import pytest
import torch

from intarsia import formats
from intarsia.kernels.router import route
from tests.kernels.steps import padded, randn, step


def naive_route(x, weight, bias, top, scaling):
    experts, weights = [], []
    for row in x.double():
        scores = [1 / (1 + math.exp(-float(row @ w))) for w in weight.double()]
        order = sorted(range(len(scores)), key=lambda e: (-(scores[e] + float(bias[e])), e))[:top]
        total = sum(scores[e] for e in order) + 1e-20
        experts.append(order)
        weights.append([scores[e] / total * scaling for e in order])
    return experts, weights


@pytest.mark.parametrize(("experts", "top", "scaling"), [(8, 2, 2.5), (12, 4, 1.0), (5, 5, 1.5), (3, 1, 2.5)])
def test_choice_and_weights(experts, top, scaling):
    x, weight, bias = randn(30, 24), randn(experts, 24, seed=1), 0.5 * randn(experts, seed=2)
    routing = route(padded(x, 0.0), weight, bias, step((0, 0, 30)), top=top, scaling=scaling)
    expected, weights = naive_route(x, weight, bias, top, scaling)
    assert routing.experts[:30].tolist() == expected
    # A logistic function, a sum, a quotient and a product in F32; libraries round the first differently, and
    # of a score of -17 it is as far off, in parts of itself, as the score's own rounding: 1e-6.
    torch.testing.assert_close(
        routing.weights[:30].double(), torch.tensor(weights, dtype=torch.float64), rtol=4e-6, atol=0
    )
    assert routing.experts.dtype == torch.int32
    assert routing.weights.dtype == torch.float32


def test_equal_scores_go_to_the_lowest_expert():
    """Whole numbers, so that equal logits are equal to the last bit wherever the product puts them."""
    x, weight = (2 * randn(40, 6)).round(), (2 * randn(4, 6, seed=1)).round()[[0, 1, 2, 1, 3, 2, 0, 0]] / 16
    routing = route(padded(x), weight, torch.zeros(8), step((0, 0, 40)), top=3, scaling=1.0)
    expected, _ = naive_route(x, weight, torch.zeros(8), 3, 1.0)
    assert routing.experts[:40].tolist() == expected
    tied = [row for row in expected if len({(0, 1, 2, 1, 3, 2, 0, 0)[e] for e in row}) < 3]
    assert len(tied) > 5


def test_padding_rows_choose_nothing():
    x, weight = padded(randn(3, 24)), randn(8, 24, seed=1)
    routing = route(x, weight, torch.zeros(8), step((0, 0, 3)), top=2, scaling=1.0)
    assert (routing.experts[3:] == -1).all()
    assert (routing.experts[:3] >= 0).all()


def test_weights_survive_scores_near_nothing():
    """sigmoid(-45) is about 3e-20: there the 1e-20 in the denominator is a part of the weight."""
    x = torch.full((16, 1), 45.0)
    weight = -torch.tensor([[1.0], [1.01], [1.02]])
    routing = route(x, weight, torch.zeros(3), step((0, 0, 16)), top=2, scaling=2.5)
    _, expected = naive_route(x, weight, torch.zeros(3), 2, 2.5)
    assert routing.weights.tolist() == [pytest.approx(row, rel=1e-5) for row in expected]
    assert routing.weights.sum(1).max() < 2.2  # 2.5 without it


def test_scores_are_float32_whatever_the_rows_are():
    """Two experts that bfloat16 products could not tell apart."""
    x = torch.ones(16, 2, dtype=torch.bfloat16)
    weight = torch.tensor([[1.0, 0.0], [1.0, 1 / 1024]])
    routing = route(x, weight, torch.zeros(2), step((0, 0, 16)), top=1, scaling=1.0)
    assert (routing.experts == 1).all()


def test_a_stored_router_weight():
    x, weight = randn(16, 24), randn(8, 24, seed=1)
    stored = formats.get("BF16").encode(weight)
    rows = step((0, 0, 16))
    got = route(x, stored, torch.zeros(8), rows, top=2, scaling=1.0)
    assert torch.equal(
        got.weights, route(x, weight.bfloat16(), torch.zeros(8), rows, top=2, scaling=1.0).weights
    )
