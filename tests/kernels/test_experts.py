"""SwiGLU with its clamp, and the weighted sum of chosen experts, against plain loops in double precision."""

import pytest
import torch

from intarsia import formats
from intarsia.kernels.experts import routed_experts, swiglu
from intarsia.kernels.router import Routing
from tests.kernels.steps import randn

EXPERTS, INNER, WIDTH, LIMIT = 6, 128, 128, 10.0
GATE_UP = randn(EXPERTS, 2 * INNER, WIDTH, seed=1) * 0.5
DOWN = randn(EXPERTS, WIDTH, INNER, seed=2) * 0.1


def naive_swiglu(gate, up, limit):
    gate = gate.clamp(max=limit)
    return gate / (1 + torch.exp(-gate)) * up.clamp(-limit, limit)


def naive_experts(x, routing, gate_up, down, limit):
    out = torch.zeros(x.shape, dtype=torch.float64)
    for row in range(x.shape[0]):
        for expert, weight in zip(routing.experts[row].tolist(), routing.weights[row].tolist(), strict=True):
            if expert < 0:
                continue
            both = gate_up[expert].double() @ x[row].double()
            inner = naive_swiglu(both[:INNER], both[INNER:], limit)
            out[row] += weight * (down[expert].double() @ inner)
    return out


def routing(rows=32, real=29, top=2) -> Routing:
    generator = torch.Generator().manual_seed(3)
    experts = torch.stack([torch.randperm(EXPERTS, generator=generator)[:top] for _ in range(rows)]).int()
    experts[real:] = -1
    return Routing(experts, torch.rand(rows, top, generator=generator))


@pytest.mark.parametrize("limit", [10.0, 1.5])
def test_swiglu_clamps_before_the_activation_the_gate_only_from_above(limit):
    values = torch.tensor([-60.0, -20.0, -10.5, -10.0, -1.0, 0.0, 0.5, 9.99, 10.0, 10.001, 30.0, 1e4])
    gate, up = (grid.reshape(-1, 1) for grid in torch.meshgrid(values, values, indexing="ij"))
    got = swiglu(torch.cat([gate, up], 1), limit).double()
    torch.testing.assert_close(got, naive_swiglu(gate.double(), up.double(), limit), rtol=1e-5, atol=1e-12)


def test_swiglu_of_bfloat16_is_rounded_once():
    both = 8 * randn(64, 64).bfloat16()
    expected = naive_swiglu(*both.double().chunk(2, -1), 10.0).bfloat16()
    assert torch.equal(swiglu(both, 10.0), expected)


def test_a_row_is_the_weighted_sum_of_its_experts():
    x, chosen = randn(32, WIDTH), routing()
    got = routed_experts(x, chosen, GATE_UP, DOWN, LIMIT)
    expected = naive_experts(x, chosen, GATE_UP, DOWN, LIMIT)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-4)
    assert (got[29:] == 0).all()


@pytest.mark.parametrize("name", formats.names())
def test_stacked_stored_experts(name):
    number_format = formats.get(name)
    gate_up, down = number_format.encode(GATE_UP), number_format.encode(DOWN)
    x, chosen = randn(32, WIDTH), routing()
    got = routed_experts(x, chosen, gate_up, down, LIMIT)
    values = [number_format.decode(stored, torch.float32) for stored in (gate_up, down)]
    torch.testing.assert_close(got.double(), naive_experts(x, chosen, *values, LIMIT), rtol=1e-5, atol=1e-4)


def test_what_is_added_comes_last():
    x, chosen, plus = randn(32, WIDTH), routing(), randn(32, WIDTH, seed=5)
    alone = routed_experts(x, chosen, GATE_UP, DOWN, LIMIT)
    assert torch.equal(routed_experts(x, chosen, GATE_UP, DOWN, LIMIT, plus), alone + plus)


def test_padding_rows_get_zeros_whatever_they_hold():
    x, chosen = randn(32, WIDTH), routing()
    clean = routed_experts(x, chosen, GATE_UP, DOWN, LIMIT)
    x[29:] = torch.nan
    assert torch.equal(routed_experts(x, chosen, GATE_UP, DOWN, LIMIT), clean)


def test_bits_of_a_row_do_not_depend_on_what_other_rows_choose():
    x, chosen = randn(48, WIDTH), routing(48, 48, top=3)
    whole = routed_experts(x, chosen, GATE_UP, DOWN, LIMIT)
    for row in range(0, 48, 5):
        alone = Routing(torch.full((16, 3), -1, dtype=torch.int32), torch.zeros(16, 3))
        alone.experts[7], alone.weights[7] = chosen.experts[row], chosen.weights[row]
        rows = torch.zeros(16, WIDTH)
        rows[7] = x[row]
        assert torch.equal(routed_experts(rows, alone, GATE_UP, DOWN, LIMIT)[7], whole[row])


def test_a_row_adds_its_experts_in_the_order_of_its_choice():
    """Float addition is not associative, so another order would change the last bits."""
    x, chosen = randn(16, WIDTH), routing(16, 16, top=4)
    turned = Routing(chosen.experts.flip(1), chosen.weights.flip(1))
    forward = routed_experts(x, chosen, GATE_UP, DOWN, LIMIT)
    backward = routed_experts(x, turned, GATE_UP, DOWN, LIMIT)
    torch.testing.assert_close(forward, backward)
    assert not torch.equal(forward, backward)
