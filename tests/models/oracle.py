"""transformers' `glm5_next` as the oracle of the network, on small configurations with random parameters."""

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from intarsia.core.config import CacheType
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.families.glm5_next.inventory import inventory
from intarsia.families.glm5_next.runtime import RuntimeModule, runtime_modules
from intarsia.models.glm5_next.model import Glm5NextModel
from tests.data import load_json

BASE = load_json("tiny_glm5_next_config.json")
TOLERANCE = 1e-4
"""What float32 logits may differ from transformers', relative to the largest."""
KINDS = {"k": "linear_attention", "m": "deepseek_sparse_attention"}


def tiny_config(layers: str = "kkkmkkkm", dense: int = 3, **text: Any) -> dict[str, Any]:
    """The tiny configuration with another pattern of layers (k KDA, m MLA) and changes to its text part."""
    config = json.loads(json.dumps(BASE))
    part = config["text_config"]
    del part["linear_attn_config"]  # says the same as the flat keys
    part |= {
        "num_hidden_layers": len(layers),
        "layer_types": [KINDS[kind] for kind in layers],
        "mlp_layer_types": ["dense"] * dense + ["sparse"] * (len(layers) - dense),
        "first_k_dense_replace": dense,
        "indexer_types": ["full"] * len(layers),
    }
    part |= text
    part["num_key_value_heads"] = part["num_attention_heads"]
    part["qk_head_dim"] = part["qk_nope_head_dim"]
    config["vision_config"]["out_hidden_size"] = part["hidden_size"]
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
        elif name.endswith("down_proj.weight"):
            # Back to the size of the residual after those large products, or rounding grows with every layer.
            value = value * 0.1 / spec.shape[-1] ** 0.5
        elif name.endswith("dt_bias"):
            # Decays over a few tokens to a few hundred, so that what a chunk takes over matters.
            value = 1.5 * value - 3
        elif name.endswith(("A_log", "bias", "ape", "base", "scale", "conv1d.weight")):
            value = 0.5 * value
        elif len(spec.shape) > 1:
            value = value * 1.2 / spec.shape[-1] ** 0.5
        tensors[name] = value
    return tensors


def random_tokens(config: Glm5NextConfig, streams: int, length: int, seed: int) -> list[list[int]]:
    """Token ids of text: the last few ids of the tiny vocabulary stand for images and ends of text."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, config.vocab_size - 10, (streams, length), generator=generator).tolist()


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers' remarks about missing kernels and unused tensors out of the output of the tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers.utils import logging

        level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(level)
            if bars:
                logging.enable_progress_bar()


def transformers_model(config: dict[str, Any], tensors: dict[str, Tensor], folder: Path) -> Any:
    """transformers' model over the same tensors, loaded by its own loader from a checkpoint in `folder`."""
    with quiet():
        from transformers import Glm5NextForConditionalGeneration

        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        # The tiny vision tower is not in the tensors and stays random; no image is ever given.
        return Glm5NextForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()


def transformers_logits(model: Any, streams: Sequence[Sequence[int]]) -> Tensor:
    """Logits float32 [streams, T, V] of streams of one length, each run whole."""
    with quiet(), torch.no_grad():
        return model(input_ids=torch.tensor(streams)).logits


def runtime_weights(config: Glm5NextConfig, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Run-time weights stacked here by plain loops, so that the network is tested without the loader."""
    mtp = any(f"layers.{layer}." in name for name in tensors for layer in config.mtp_layers)
    return {module.name: _stack(module, tensors) for module in runtime_modules(config, mtp=mtp)}


def _stack(module: RuntimeModule, tensors: dict[str, Tensor]) -> Tensor:
    names = [source + ".weight" if module.matrix else source for source in module.sources]
    return torch.cat(
        [tensors[name].flatten(1) if tensors[name].ndim > 2 else tensors[name] for name in names]
    ).view(module.shape)


def network(
    config: dict[str, Any],
    tensors: dict[str, Tensor],
    dtype: torch.dtype = torch.float32,
    latents: CacheType = "auto",
) -> Glm5NextModel:
    """Our network over the same tensors on the CPU."""
    parsed = Glm5NextConfig.from_checkpoint_config(config)
    weights = runtime_weights(parsed, tensors)
    return Glm5NextModel(parsed, weights, dtype=dtype, device="cpu", latents=latents)


def difference(got: Tensor, expected: Tensor) -> float:
    """The largest difference relative to the largest expected magnitude; infinite where not all is finite."""
    if not torch.isfinite(got).all():
        return float("inf")
    return float((got - expected).abs().max() / expected.abs().max())
