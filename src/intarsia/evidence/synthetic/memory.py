"""A network with random weights made where it runs, in stored formats: no file, no wide copy, no encoder."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from intarsia import formats
from intarsia.evidence.synthetic.chosen import Chosen, choose_formats
from intarsia.evidence.synthetic.values import random_plain, random_stack
from intarsia.families.glm5_next.runtime import RuntimeModule, runtime_modules
from intarsia.families.glm5_next.split import SplitRule, shares, split_rule
from intarsia.groups.group import SINGLE, Group
from intarsia.kernels.weights import Weight
from intarsia.models.glm5_next.model import Glm5NextModel


def network(
    config: Mapping[str, Any],
    *,
    recipe: str,
    dtype: torch.dtype = torch.bfloat16,
    device: str | torch.device = "cuda",
    seed: int = 0,
    group: Group = SINGLE,
) -> Glm5NextModel:
    """The network of a configuration (see `geometry`) with `weights` of a recipe."""
    made = weights(config, recipe=recipe, device=device, seed=seed, rank=group.rank, ranks=group.ranks)
    network_config = choose_formats(config, recipe).config
    return Glm5NextModel(network_config, made, dtype=dtype, device=device, group=group)


def weights(
    config: Mapping[str, Any],
    *,
    recipe: str,
    device: str | torch.device = "cuda",
    seed: int = 0,
    rank: int = 0,
    ranks: int = 1,
) -> dict[str, Weight]:
    """Run-time name -> weight, as `load_weights` gives it for a checkpoint that `synthesize` writes.

    The numbers are others than those of that checkpoint: a fused weight is drawn at once. The same seed and
    device type give the same bytes.

    Of several ranks one gets weights of its share's sizes. They are drawn so, not cut: whole matrices of all
    ranks together make no network that one rank could have.
    """
    chosen = choose_formats(config, recipe)
    generator = torch.Generator(device=device).manual_seed(seed)
    made = {}
    for module in runtime_modules(chosen.config):
        rule = split_rule(chosen.config, module.sources[0])
        part = shares(rule, ranks)[rank] if rule.axis is not None and ranks > 1 else None
        if part is not None and module.matrix:
            module = replace(module, shape=shared_shape(module, rule, len(part)))
        weight = _weight(module, chosen, generator)
        if part is not None and isinstance(weight, torch.Tensor):
            weight = _narrowed(weight, rule.axis or 0, module.parts, part)
        made[module.name] = weight
    return made


def shared_shape(module: RuntimeModule, rule: SplitRule, size: int) -> tuple[int, ...]:
    """The shape of a share of a matrix, of the matrices stacked in it as many rows each."""
    *lead, rows, columns = module.shape
    return (*lead, size * module.parts, columns) if rule.axis == 0 else (*lead, rows, size)


def _narrowed(weight: torch.Tensor, axis: int, parts: int, part: range) -> torch.Tensor:
    """The share of a plain tensor in which `parts` tensors lie above each other."""
    each = weight.chunk(parts) if axis == 0 else (weight,)
    return torch.cat([one.narrow(axis, part.start, len(part)) for one in each])


def _weight(module: RuntimeModule, chosen: Chosen, generator: torch.Generator) -> Weight:
    first = module.sources[0]
    if not module.matrix:
        parts = [
            random_plain(name, chosen.specs[name], chosen.dtype(name), generator) for name in module.sources
        ]
        return torch.cat(parts).view(module.shape)
    target = chosen.targets.get(first)
    if target is not None:
        return random_stack(target.format, module.shape, module.parts, generator)
    name = f"{first}.weight"
    spec = chosen.specs[name]
    dtype = chosen.dtype(name)
    if module.stack == "none":
        values = random_plain(name, replace(spec, shape=module.shape), dtype, generator)
    else:
        noise = torch.randn(module.shape, generator=generator, device=generator.device, dtype=dtype)
        values = noise * module.shape[-1] ** -0.5
    return formats.get("F32" if dtype == torch.float32 else "BF16").stored({"weight": values})
