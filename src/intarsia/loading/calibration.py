"""Activation scales of routed experts: as calibrated for each expert, or one for a layer.

A layer that has one scale for all experts quantizes a token once for all of them. Taking the largest is a
heuristic, not a new calibration, and it changes outputs; so it is off unless asked for. Weights, block scales
and weight global scales are not touched. What a kernel folds together from both has to be computed again:
`folded`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch

from intarsia.core.errors import Violation
from intarsia.families.groups import container_of
from intarsia.formats import Stored
from intarsia.loading.errors import LoadError

LayerMax = Literal["off", "w13", "w2", "all"]
Weight = Stored | torch.Tensor

_FIRST = ("gate_up", "gate_proj", "up_proj", "w1", "w3")
_SECOND = ("down", "down_proj", "w2")


def layer_max_input_scale(weights: Mapping[str, Weight], mode: LayerMax) -> dict[str, Weight]:
    """The weights with one input scale a layer: `w13` for gate and up together, `w2` for down, `all` both.

    The largest scale of a layer's experts replaces all of them, in tensors of the same shape. Other tensors
    are the same objects. Raises LoadError naming every scale that is not finite and positive.
    """
    chosen = {"off": (), "w13": _FIRST, "w2": _SECOND, "all": _FIRST + _SECOND}[mode]
    layers: dict[tuple[str, bool], dict[str, Stored]] = {}
    for name, weight in weights.items():
        place = _layer(name)
        if place is None or not isinstance(weight, Stored) or "input_scale" not in weight:
            continue
        if place[1] in chosen:
            layers.setdefault((place[0], place[1] in _FIRST), {})[name] = weight
    violations: list[Violation] = []
    result = dict(weights)
    for members in layers.values():
        for name, weight in members.items():
            scale = weight["input_scale"]
            if not bool((torch.isfinite(scale) & (scale > 0)).all()):
                found = f"{scale.flatten().min().item():g} to {scale.flatten().max().item():g}"
                where = f"{name}.input_scale"
                violations.append(Violation("input-scale", where, found, "finite and positive scales"))
        largest = torch.stack([weight["input_scale"].max() for weight in members.values()]).max()
        for name, weight in members.items():
            shared = torch.full_like(weight["input_scale"], largest.item())
            result[name] = replace(weight, tensors={**weight.tensors, "input_scale": shared})
    if violations:
        raise LoadError("input scales", violations)
    return result


def folded(weight: Stored) -> torch.Tensor:
    """weight_scale_2 * input_scale, which a kernel multiplies a product of two FP4 matrices by; float32."""
    return weight["weight_scale_2"] * weight["input_scale"]


def _layer(name: str) -> tuple[str, str] | None:
    """The layer and the matrix of a weight of routed experts, stacked or not."""
    parent, _, last = name.rpartition(".")
    if parent.endswith(".experts"):
        return parent, last
    container = container_of(name)
    return (container, last) if container is not None else None
