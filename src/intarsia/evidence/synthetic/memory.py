"""A network with random weights made where it runs, in stored formats: no file, no wide copy, no encoder."""

from collections.abc import Mapping
from typing import Any

import torch

from intarsia import formats
from intarsia.evidence.synthetic.chosen import Chosen, choose_formats
from intarsia.evidence.synthetic.values import random_plain, random_stack
from intarsia.families.glm5_next.runtime import RuntimeModule, runtime_modules
from intarsia.kernels.weights import Weight
from intarsia.models.glm5_next.model import Glm5NextModel


def network(
    config: Mapping[str, Any],
    *,
    recipe: str,
    dtype: torch.dtype = torch.bfloat16,
    device: str | torch.device = "cuda",
    seed: int = 0,
) -> Glm5NextModel:
    """The network of a configuration (see `geometry`) with `weights` of a recipe."""
    made = weights(config, recipe=recipe, device=device, seed=seed)
    network_config = choose_formats(config, recipe).config
    return Glm5NextModel(network_config, made, dtype=dtype, device=device)


def weights(
    config: Mapping[str, Any], *, recipe: str, device: str | torch.device = "cuda", seed: int = 0
) -> dict[str, Weight]:
    """Run-time name -> weight, as `load_weights` gives it for a checkpoint that `synthesize` writes.

    The numbers are others than those of that checkpoint: a fused weight is drawn at once. The same seed and
    device type give the same bytes.
    """
    chosen = choose_formats(config, recipe)
    generator = torch.Generator(device=device).manual_seed(seed)
    return {module.name: _weight(module, chosen, generator) for module in runtime_modules(chosen.config)}


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
        values = random_plain(name, spec, dtype, generator)
    else:
        noise = torch.randn(module.shape, generator=generator, device=generator.device, dtype=dtype)
        values = noise * module.shape[-1] ** -0.5
    return formats.get("F32" if dtype == torch.float32 else "BF16").stored({"weight": values})
