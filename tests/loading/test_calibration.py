"""One activation scale a layer, when asked for; nothing else changes."""

import pytest
import torch

from intarsia.formats import Stored
from intarsia.loading.calibration import folded, layer_max_input_scale
from intarsia.loading.errors import LoadError


def stack(scales, columns=1):
    scale = torch.tensor(scales, dtype=torch.float32)
    tensors = {
        "weight": torch.zeros(2, 4, 8, dtype=torch.uint8),
        "weight_scale": torch.zeros(2, 4, 1).to(torch.float8_e4m3fn),
        "weight_scale_2": torch.full(scale.shape, 0.5),
        "input_scale": scale,
    }
    return Stored("NVFP4", tensors, (2, 4, 16))


@pytest.fixture
def weights():
    return {
        "layers.3.mlp.experts.gate_up": stack([[2.0, 1.0], [3.0, 2.5]]),
        "layers.3.mlp.experts.down": stack([7.0, 5.0]),
        "layers.4.mlp.experts.down": stack([11.0, 13.0]),
        "layers.3.mlp.shared_experts.down": stack([1.0, 2.0]),
        "norm": torch.ones(4),
    }


@pytest.mark.parametrize(
    ("mode", "first", "second"),
    [
        ("off", [[2, 1], [3, 2.5]], [7, 5]),
        ("w13", [[3, 3], [3, 3]], [7, 5]),
        ("w2", [[2, 1], [3, 2.5]], [7, 7]),
        ("all", [[3, 3], [3, 3]], [7, 7]),
    ],
)
def test_the_table_of_modes(weights, mode, first, second):
    result = layer_max_input_scale(weights, mode)
    assert result["layers.3.mlp.experts.gate_up"]["input_scale"].tolist() == first
    assert result["layers.3.mlp.experts.down"]["input_scale"].tolist() == second
    assert result["layers.3.mlp.shared_experts.down"] is weights["layers.3.mlp.shared_experts.down"]
    for name in weights:
        if name == "norm":
            continue
        for suffix in ("weight", "weight_scale", "weight_scale_2"):
            assert result[name][suffix] is weights[name][suffix]
    assert weights["layers.3.mlp.experts.down"]["input_scale"].tolist() == [7, 5]


def test_layers_do_not_share(weights):
    result = layer_max_input_scale(weights, "all")
    assert result["layers.4.mlp.experts.down"]["input_scale"].tolist() == [13, 13]


def test_folded_coefficients_follow(weights):
    result = layer_max_input_scale(weights, "w13")
    assert folded(result["layers.3.mlp.experts.gate_up"]).tolist() == [[1.5, 1.5], [1.5, 1.5]]
    assert folded(result["layers.3.mlp.experts.down"]).tolist() == [3.5, 2.5]


def test_experts_that_are_not_stacked_share_by_layer():
    scales = {"0.gate": 1.0, "0.up": 2.0, "1.gate": 4.0, "1.up": 3.0, "0.down": 9.0}
    one = {f"model.layers.0.mlp.experts.{name}_proj": stack([s, s]) for name, s in scales.items()}
    result = layer_max_input_scale(one, "w13")
    shared = {name: weight["input_scale"].max().item() for name, weight in result.items()}
    assert set(list(shared.values())[:4]) == {4.0}
    assert list(shared.values())[4] == 9.0


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_cannot_be_is_named(weights, value):
    weights["layers.4.mlp.experts.down"]["input_scale"][1] = value
    with pytest.raises(LoadError, match=r"layers\.4\.mlp\.experts\.down\.input_scale"):
        layer_max_input_scale(weights, "w2")
    assert layer_max_input_scale(weights, "off").keys() == weights.keys()
