"""Checkpoints of real size that take no room: true headers, and data that is a hole in the file."""

import json
from math import prod
from pathlib import Path
from typing import Any

from intarsia.checkpoint import Checkpoint, open_checkpoint
from intarsia.checkpoint.dtypes import BITS
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.families.glm5_next.inventory import inventory

Headers = dict[str, tuple[str, tuple[int, ...]]]


def bf16_headers(config: dict[str, Any]) -> Headers:
    """Name -> dtype and shape of every tensor of the unquantized architecture."""
    specs = inventory(Glm5NextConfig.from_checkpoint_config(config))
    return {name: (spec.dtype, spec.shape) for name, spec in specs.items()}


def write_sparse(folder: Path, config: dict[str, Any], headers: Headers, shards: int = 4) -> Checkpoint:
    """Writes and opens the checkpoint, its tensors dealt to `shards` files in order."""
    folder.mkdir(parents=True)
    names = list(headers)
    weight_map = {}
    for number in range(shards):
        part = names[number * len(names) // shards : (number + 1) * len(names) // shards]
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        weight_map.update(dict.fromkeys(part, file))
        _write_shard(folder / file, {name: headers[name] for name in part})
    (folder / "config.json").write_text(json.dumps(config))
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return open_checkpoint(folder)


def _write_shard(path: Path, headers: Headers) -> None:
    header: dict[str, Any] = {}
    position = 0
    for name, (dtype, shape) in headers.items():
        size = prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + position)
