"""Which format a recipe gives every tensor of a configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.families.glm5_next.inventory import TensorSpec, inventory
from intarsia.selection.recipes import apply_recipe
from intarsia.selection.resolve import Target, resolve
from intarsia.selection.source import describe_source

# As in the FP4-Local layout: values that BF16 cannot hold.
WIDE = ("post_attention_layernorm.weight", "model.language_model.norm.weight")


@dataclass(frozen=True)
class Chosen:
    """Tensors by name as the architecture has them, and the format of every module that gets one."""

    config: Glm5NextConfig
    specs: Mapping[str, TensorSpec]
    targets: Mapping[str, Target]

    def dtype(self, name: str) -> torch.dtype:
        """The dtype of a tensor that is stored as numbers."""
        return torch.float32 if _kind(name, self.specs[name]) == "F32" else torch.bfloat16


def choose_formats(config: Mapping[str, Any], recipe: str) -> Chosen:
    """Apply a recipe to the tensors of a configuration. Raises what selection raises."""
    network = Glm5NextConfig.from_checkpoint_config(dict(config))
    specs = inventory(network, vision=False)
    headers = {name: (_kind(name, spec), spec.shape) for name, spec in specs.items()}
    source = describe_source(config, headers, {})
    return Chosen(network, specs, resolve(apply_recipe(recipe, source), source).targets)


def _kind(name: str, spec: TensorSpec) -> str:
    return "F32" if name.endswith(WIDE) else spec.dtype
