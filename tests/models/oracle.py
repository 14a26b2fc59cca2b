"""transformers' `glm5_next` as the oracle of the network, on small configurations with random parameters."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.families.glm5_next.inventory import inventory
from intarsia.families.glm5_next.runtime import RuntimeModule, runtime_modules
from intarsia.models.glm5_next.model import Glm5NextModel

BASE = json.loads((Path(__file__).parents[1] / "data" / "tiny_glm5_next_config.json").read_text())


def tiny_config(**text: Any) -> dict[str, Any]:
    """The tiny configuration with changes to its text part; short `layers` lists may be given by `num_hidden_layers`."""
    config = json.loads(json.dumps(BASE))
    config["text_config"].update(text)
    return config


def random_tensors(config: Glm5NextConfig, seed: int) -> dict[str, Tensor]:
    """Float32 checkpoint tensors, every parameter random, scaled so that all parts of the network matter.

    Gate and up rows are large enough for the clamp at 10 to act on more than 1 % of units.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, spec in inventory(config, vision=False).items():
        value = torch.randn(spec.shape, generator=generator)
        if name.endswith(("norm.weight", "_layernorm.weight", "enorm.weight", "hnorm.weight")):
            value = 1 + 0.3 * value
        elif name.endswith(("gate_proj.weight", "up_proj.weight")):
            value = value * 5.0 / spec.shape[-1] ** 0.5
        elif name.endswith(("A_log", "dt_bias", "bias", "ape", "base", "scale", "conv1d.weight")):
            value = 0.5 * value
        elif len(spec.shape) > 1:
            value = value * 1.2 / spec.shape[-1] ** 0.5
        tensors[name] = value
    return tensors


def transformers_logits(
    config: dict[str, Any], tensors: dict[str, Tensor], tokens: list[int], folder: Path
) -> tuple[Tensor, Any]:
    """Logits [T, V] of transformers over the same tensors, loaded by its own loader from a checkpoint; and its model."""
    from transformers import Glm5NextForConditionalGeneration

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    # The tiny vision tower is not in the tensors and stays random; no image is ever given.
    model = Glm5NextForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(input_ids=torch.tensor([tokens])).logits[0], model


def runtime_weights(config: Glm5NextConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Run-time weights stacked here by plain loops, so that the network is tested without the loader."""
    mtp = any(f"layers.{layer}." in name for name in tensors for layer in config.mtp_layers)
    return {module.name: _stack(module, tensors) for module in runtime_modules(config, mtp=mtp)}


def _stack(module: RuntimeModule, tensors: dict[str, Tensor]) -> Tensor:
    names = [source + ".weight" if module.matrix else source for source in module.sources]
    return torch.cat([tensors[name].flatten(1) if tensors[name].ndim > 2 else tensors[name] for name in names]).view(
        module.shape
    )


def network(config: dict[str, Any], tensors: dict[str, Tensor]) -> Glm5NextModel:
    """Our network over the same tensors, float32 on the CPU."""
    parsed = Glm5NextConfig.from_checkpoint_config(config)
    return Glm5NextModel(parsed, runtime_weights(parsed, tensors), dtype=torch.float32, device="cpu")
