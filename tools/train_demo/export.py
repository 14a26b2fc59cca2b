"""Writes the trained network as the package's checkpoint: BF16 safetensors, two shards, one in a folder."""

from __future__ import annotations

import json
import re
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from .model import DemoModel

SHARDS = ("model-00001-of-00002.safetensors", "tensors/model-00002-of-00002.safetensors")
SHARD_LIMIT = 15_000_000
F32_NAMES = re.compile(
    r"(post_attention_layernorm\.weight|language_model\.norm\.weight|hc_(attn|ffn)_(base|scale)"
    r"|A_log|dt_bias|e_score_correction_bias)$"
)
BEYOND_BF16 = re.compile(
    r"(post_attention_layernorm\.weight|language_model\.norm\.weight|hc_(attn|ffn)_(base|scale))$"
)


class ExportError(RuntimeError):
    """The trained values break a promise the checkpoint makes."""


def checkpoint_tensors(model: DemoModel, dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    """Checkpoint name -> CPU tensor in its stored dtype; routed experts split into gate, up and down."""
    out: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        value = value.detach().float().cpu()
        if name.endswith("experts.gate_up_proj"):
            width = value.shape[1] // 2
            for e, both in enumerate(value):
                out[name.replace("gate_up_proj", f"{e}.gate_proj.weight")] = both[:width]
                out[name.replace("gate_up_proj", f"{e}.up_proj.weight")] = both[width:]
        elif name.endswith("experts.down_proj"):
            for e, down in enumerate(value):
                out[name.replace("down_proj", f"{e}.down_proj.weight")] = down
        else:
            out[name] = value
    stored = {n: (t if F32_NAMES.search(n) else t.to(dtype)).contiguous().clone() for n, t in out.items()}
    return dict(sorted(stored.items(), key=lambda item: natural(item[0])))


def natural(name: str) -> list[tuple[int, int | str]]:
    """Sort key that counts layer and expert numbers as numbers."""
    return [(0, int(p)) if p.isdigit() else (1, p) for p in name.split(".")]


def check_beyond_bf16(tensors: dict[str, Tensor]) -> None:
    """Raises ExportError when a tensor stored F32 on purpose would survive a cast to BF16."""
    same = [n for n, t in tensors.items() if BEYOND_BF16.search(n) and torch.equal(t.bfloat16().float(), t)]
    if same:
        raise ExportError(f"BF16 holds these values, so their F32 storage proves nothing: {same}")


def write_checkpoint(model: DemoModel, out: Path) -> dict[str, int]:
    """Writes both shards, the index and config.json under `out`; returns each shard's bytes."""
    tensors = checkpoint_tensors(model)
    check_beyond_bf16(tensors)
    total = sum(t.nbytes for t in tensors.values())
    parts: tuple[dict[str, Tensor], dict[str, Tensor]] = ({}, {})
    used = 0
    for name, tensor in tensors.items():
        parts[int(used >= total / 2)][name] = tensor
        used += tensor.nbytes
    sizes = {}
    for shard, part in zip(SHARDS, parts, strict=True):
        path = out / shard
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        save_file(part, fresh, metadata={"format": "pt"})
        fresh.replace(path)
        sizes[shard] = path.stat().st_size
        if sizes[shard] > SHARD_LIMIT:
            raise ExportError(f"{shard} has {sizes[shard]} bytes, more than {SHARD_LIMIT}")
    weight_map = {n: shard for shard, part in zip(SHARDS, parts, strict=True) for n in part}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    (out / "config.json").write_text(json.dumps(model.settings.config(), indent=1) + "\n")
    return sizes


def load_tensors(model: DemoModel, tensors: dict[str, Tensor]) -> None:
    """Sets the network's parameters from checkpoint tensors (the inverse of `checkpoint_tensors`)."""
    state = model.state_dict()
    for name, value in state.items():
        if name.endswith("experts.gate_up_proj"):
            parts = [
                torch.cat(
                    [
                        tensors[name.replace("gate_up_proj", f"{e}.{kind}_proj.weight")]
                        for kind in ("gate", "up")
                    ]
                )
                for e in range(value.shape[0])
            ]
            value.copy_(torch.stack(parts))
        elif name.endswith("experts.down_proj"):
            parts = [
                tensors[name.replace("down_proj", f"{e}.down_proj.weight")] for e in range(value.shape[0])
            ]
            value.copy_(torch.stack(parts))
        else:
            value.copy_(tensors[name])
