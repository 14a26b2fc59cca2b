"""Encoding the matrices of a selection as they come from the source: pure functions of the weights."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from intarsia import formats
from intarsia.core.errors import IntarsiaError
from intarsia.families.groups import container_of
from intarsia.formats import csf
from intarsia.loading.errors import ConvertError
from intarsia.selection.resolve import Selection, Target

# Formats with one global scale a matrix; fused matrices share it.
WITH_GLOBAL = frozenset(["NVFP4", "W4A16_NVFP4"])


@dataclass(frozen=True, slots=True)
class Unit:
    """Matrices encoded together because they share a global scale; mostly just one."""

    targets: tuple[Target, ...]


def units(selection: Selection) -> tuple[Unit, ...]:
    """The targets in the source's order, those that share a global scale together.

    Members of a fused group share it, and so do an expert's gate and up; experts never share one.
    """
    shared: dict[str, list[Target]] = {}
    for target in selection.targets.values():
        shared.setdefault(_share(target), []).append(target)
    return tuple(Unit(tuple(members)) for members in shared.values())


def _share(target: Target) -> str:
    if target.format not in WITH_GLOBAL:
        return target.module
    if container_of(target.module) is None:
        return target.group or target.module
    expert, _, name = target.module.rpartition(".")
    # w1 and w3 are other architectures' names of gate and up
    return f"{expert}.gate_up" if name in ("gate_proj", "up_proj", "w1", "w3") else target.module


def encode_unit(
    unit: Unit, weights: Sequence[torch.Tensor]
) -> Iterator[tuple[Target, Mapping[str, torch.Tensor]]]:
    """Stored tensors by suffix of each target, in order; `weights` are the source matrices, untouched.

    Compressed scales replace `weight_scale` by the codec's components, `weight_scale.<component>`. Raises
    ConvertError naming the module when a weight is not finite or does not fit the format.
    """
    amax = None
    if len(unit.targets) > 1:
        amax = torch.stack([weight.abs().amax() for weight in weights]).amax().float()
    for target, weight in zip(unit.targets, weights, strict=True):
        yield target, encode_matrix(target, weight, amax)


def encode_matrix(
    target: Target, weight: torch.Tensor, amax: torch.Tensor | None = None
) -> dict[str, torch.Tensor]:
    """Stored tensors by suffix of one matrix, as `encode_unit` gives them."""
    problem: IntarsiaError | None = None
    try:
        stored = formats.get(target.format).encode(weight, amax=amax)
        tensors = dict(stored.tensors)
        if target.codec is not None:
            scales = tensors.pop("weight_scale")
            for name, tensor in csf.encode(scales, target.codec).items():
                tensors[f"weight_scale.{name}"] = tensor
        return tensors
    except IntarsiaError as error:
        problem = error
    raise ConvertError(
        target.module,
        found=problem.found,
        expected=f"{problem.expected} for {target.format}",
        action=problem.action,
    )
