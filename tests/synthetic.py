"""Small random checkpoints with the tensors of a real architecture."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from intarsia.checkpoint import Checkpoint, write_checkpoint
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.families.glm5_next.inventory import inventory
from tests.data import load_json

COMPANIONS = {
    "tokenizer.json": b'{"version": "1.0"}\n',
    "generation_config.json": b'{"temperature": 1.0}\n',
    "chat_template.jinja": b"{{ messages }}\n",
}


def tiny_config(**text: Any) -> dict[str, Any]:
    """The tiny configuration with sizes that every format and codec divides; `text` changes its text part."""
    config = copy.deepcopy(load_json("tiny_glm5_next_config.json"))
    sizes = {"hidden_size": 128, "q_lora_rank": 64, "moe_intermediate_size": 128, "intermediate_size": 256}
    sizes |= {"linear_head_dim": 32}
    config["vision_config"]["out_hidden_size"] = 128
    config["text_config"]["linear_attn_config"]["head_dim"] = 32
    config["text_config"].update(sizes | text)
    return config


def random_tensors(config: dict[str, Any], seed: int = 0, *, vision: bool = False) -> dict[str, torch.Tensor]:
    """A tensor for every name of the architecture, BF16 or F32 as published, norms in F32 as in FP4-Local."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, spec in inventory(Glm5NextConfig.from_checkpoint_config(config), vision=vision).items():
        wide = spec.dtype == "F32" or name.endswith(("post_attention_layernorm.weight", "model.norm.weight"))
        value = torch.randn(spec.shape, generator=generator) * 0.05
        tensors[name] = value if wide else value.bfloat16()
    return tensors


def write_source(
    folder: Path,
    config: dict[str, Any] | None = None,
    *,
    change: Callable[[dict[str, torch.Tensor]], object] | None = None,
    vision: bool = False,
) -> Checkpoint:
    """Writes a random BF16 checkpoint of a tiny architecture, in several shards, and opens it.

    `change` may edit the tensors before they are written.
    """
    config = config or tiny_config()
    tensors = random_tensors(config, vision=vision)
    if change is not None:
        change(tensors)
    return write_checkpoint(
        folder, tensors.items(), config=config, shard_size=1 << 20, extra_files=dict(COMPANIONS)
    )
