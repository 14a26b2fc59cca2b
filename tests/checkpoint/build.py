"""Small checkpoints for tests: well-formed ones, and files with any header at all."""

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch

from intarsia import formats
from intarsia.checkpoint import AuditReport, open_checkpoint, resolve, write_checkpoint
from intarsia.checkpoint.dtypes import BITS
from intarsia.formats import csf

Tensors = dict[str, torch.Tensor]
Spec = Mapping[str, tuple[str, tuple[int, ...]]]

SOURCE = {"name": "modelopt", "version": "0.47.0"}


def weight(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """A BF16 matrix with a few large values, so that compressed scales have exceptions."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(rows, columns, generator=generator)
    values[torch.rand(rows, columns, generator=generator) < 0.004] *= 60
    return values.bfloat16()


def encoded(algo: str, rows: int, columns: int, seed: int = 0, *, input_scale: bool = False) -> Tensors:
    """Suffix -> tensor of one module in a format."""
    tensors = dict(formats.get(algo).encode(weight(rows, columns, seed)))
    if input_scale:
        tensors["input_scale"] = torch.tensor(0.002)
    return tensors


def compressed(tensors: Tensors, codec: str) -> Tensors:
    """The same module with its block scales compressed."""
    parts = csf.encode(tensors["weight_scale"], codec)
    kept = {suffix: tensor for suffix, tensor in tensors.items() if suffix != "weight_scale"}
    return kept | {f"weight_scale.{part}": tensor for part, tensor in parts.items()}


def plain(rows: int = 32, columns: int = 32, seed: int = 0) -> Tensors:
    return {"weight": weight(rows, columns, seed)}


def flat(modules: Mapping[str, Tensors]) -> Tensors:
    """Full tensor names from module -> suffix -> tensor."""
    return {f"{module}.{suffix}": t for module, tensors in modules.items() for suffix, t in tensors.items()}


def modelopt(algo: str, **more: Any) -> dict[str, Any]:
    """A `quantization_config` as modelopt writes it."""
    return {"quant_method": "modelopt", "quant_algo": algo, "ignore": [], "producer": SOURCE, **more}


def mixed(layers: Mapping[str, Any]) -> dict[str, Any]:
    """The `quantization_config` of a checkpoint with a recipe a module."""
    return modelopt("MIXED_PRECISION", quantized_layers=layers)


def nested(algo: str | None, **more: Any) -> dict[str, Any]:
    """An `hf_quant_config.json` as modelopt writes it."""
    return {"producer": SOURCE, "quantization": {"quant_algo": algo, "kv_cache_quant_algo": None, **more}}


def make(
    folder: Path,
    modules: Mapping[str, Tensors],
    quantization: Mapping[str, Any] | None = None,
    legacy: Mapping[str, Any] | None = None,
    layers: int | None = None,
    **config: Any,
) -> Path:
    """Write a checkpoint of these modules; returns its folder."""
    write_checkpoint(folder, flat(modules).items())
    if layers is not None:
        config["num_hidden_layers"] = layers
    if quantization is not None:
        config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config))
    if legacy is not None:
        (folder / "hf_quant_config.json").write_text(json.dumps(legacy))
    return folder


def header_of(spec: Spec) -> tuple[dict[str, Any], int]:
    """A header for tensors of these types and shapes, one behind the other, and its data bytes."""
    header: dict[str, Any] = {}
    position = 0
    for name, (dtype, shape) in spec.items():
        size = prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    return header, position


def shard(path: Path, header: Mapping[str, Any] | bytes, data: bytes | int = b"") -> Path:
    """Write a safetensors file with any header; `data` may be a number of bytes that are left sparse."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        if isinstance(data, bytes):
            file.write(data)
        else:
            file.truncate(8 + len(text) + data)
    return path


def sparse(
    folder: Path,
    spec: Spec,
    quantization: Mapping[str, Any] | None = None,
    shards: int = 1,
    **config: Any,
) -> Path:
    """A checkpoint of these headers whose data takes no disk space."""
    names = list(spec)
    size = -(-len(names) // shards)
    weight_map = {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        part = names[number * size : (number + 1) * size]
        shard(folder / file, *header_of({name: spec[name] for name in part}))
        weight_map.update(dict.fromkeys(part, file))
    if quantization is not None:
        config["quantization_config"] = dict(quantization)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def rules(report: AuditReport) -> set[str]:
    return {item.rule for item in report.violations}


def notes(report: AuditReport) -> set[str]:
    return {item.rule for item in report.notes}


def named(report: AuditReport, rule: str) -> list[str]:
    """What the violations of a rule are about."""
    return [item.where for item in report.violations if item.rule == rule]


def formats_of(folder: Path) -> dict[str, str | None]:
    return {name: module.format for name, module in resolve(open_checkpoint(folder)).modules.items()}


def nvfp4(rows: int = 32, columns: int = 32, seed: int = 0) -> Tensors:
    return encoded("NVFP4", rows, columns, seed, input_scale=True)


def with_scale_byte(tensors: Tensors, row: int, column: int, byte: int) -> Tensors:
    """The module with one byte of its block scales replaced."""
    raw = tensors["weight_scale"].view(torch.uint8).clone()
    raw[row, column] = byte
    return tensors | {"weight_scale": raw.view(tensors["weight_scale"].dtype)}


def ct_group(targets: list[str], bits: int, strategy: str) -> dict[str, Any]:
    """A config group of compressed-tensors."""
    return {"targets": targets, "weights": {"num_bits": bits, "type": "float", "strategy": strategy}}


def ct_packed(rows: int = 32, columns: int = 32) -> Tensors:
    """A module as compressed-tensors' nvfp4-pack-quantized stores it."""
    tensors = encoded("NVFP4", rows, columns)
    return {
        "weight_packed": tensors["weight"],
        "weight_scale": tensors["weight_scale"],
        "weight_global_scale": torch.tensor([3584.0]),
    }
