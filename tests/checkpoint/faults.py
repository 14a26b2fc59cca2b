"""Seeded damage to a converted checkpoint: one fault a copy, each with what an audit must name.

    for fault in applicable(folder):
        needle = damage(folder, copy, fault, seed)
        assert any(needle in str(violation) for violation in audit(copy, values=True).violations)

Works on any checkpoint in the FP4-Local layout, whichever codec its expert scales use. A fault whose kind of
module the checkpoint lacks does not apply to it.
"""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

INDEX, CONFIG, LEGACY = "model.safetensors.index.json", "config.json", "hf_quant_config.json"
PARTS = ("csf_base", "csf_codes", "csf_escape_count", "csf_escape_position", "csf_escape_value")


class NotApplicableError(Exception):
    """The checkpoint has nothing that this fault could be done to."""


class Copy:
    """A checkpoint to damage. Files are linked from the original until they are changed."""

    def __init__(self, source: Path, folder: Path, rng: random.Random) -> None:
        self.folder, self.rng = folder, rng
        shutil.copytree(source, folder, copy_function=os.link)
        self.weight_map: dict[str, str] = self.document(INDEX)["weight_map"]

    # Documents.

    def document(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())

    def replace(self, name: str, content: bytes) -> None:
        path = self.folder / name
        path.unlink(missing_ok=True)  # or the original would change with it
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)

    def edit(self, name: str, change: Callable[[Any], None]) -> None:
        document = self.document(name)
        change(document)
        self.replace(name, json.dumps(document).encode())

    def edit_recipes(self, change: Callable[[dict[str, Any]], None]) -> None:
        """Change `quantized_layers` in both carriers."""
        self.edit(CONFIG, lambda d: change(d["quantization_config"]["quantized_layers"]))
        if (self.folder / LEGACY).exists():
            self.edit(LEGACY, lambda d: change(d["quantization"]["quantized_layers"]))

    def recipes(self) -> dict[str, Any]:
        return self.document(CONFIG)["quantization_config"]["quantized_layers"]

    # Tensors.

    def tensors(self, shard: str) -> dict[str, torch.Tensor]:
        with safe_open(self.folder / shard, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    def read(self, name: str) -> torch.Tensor:
        with safe_open(self.folder / self.weight_map[name], framework="pt") as file:
            return file.get_tensor(name)

    def write(self, changes: dict[str, torch.Tensor | None], shard: str | None = None) -> None:
        """Set or (None) delete tensors of one shard, and keep the index in step."""
        shard = shard or self.weight_map[next(name for name in changes if name in self.weight_map)]
        held = self.tensors(shard)
        for name, tensor in changes.items():
            held.pop(name, None)
            if tensor is not None:
                held[name] = tensor.contiguous()
        (self.folder / shard).unlink()
        save_file(held, self.folder / shard)
        for name, tensor in changes.items():
            if tensor is None:
                self.weight_map.pop(name, None)
            else:
                self.weight_map[name] = shard
        self.save_map()

    def save_map(self) -> None:
        self.edit(INDEX, lambda d: d.update(weight_map=self.weight_map))

    def modules(self, kind: str) -> list[str]:
        """Names of the modules stored in a certain way."""
        if not hasattr(self, "_kinds"):
            self._kinds = dict(self._classify())
        found = self._kinds.get(kind, [])
        if not found:
            raise NotApplicableError(kind)
        return found

    def pick(self, kind: str) -> str:
        return self.rng.choice(self.modules(kind))

    def _classify(self) -> Iterator[tuple[str, list[str]]]:
        kinds: dict[str, list[str]] = {}
        for shard in sorted(set(self.weight_map.values())):
            with safe_open(self.folder / shard, framework="pt") as file:
                slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
                for name, view in slices.items():
                    if name.endswith(".weight"):
                        module = name.removesuffix(".weight")
                        for kind in self._kinds_of(module, view.get_dtype(), view.get_shape()):
                            kinds.setdefault(kind, []).append(module)
        yield from kinds.items()

    def _kinds_of(self, module: str, dtype: str, shape: list[int]) -> Iterator[str]:
        scale = module + ".weight_scale"
        if dtype in ("BF16", "F32"):
            yield f"{dtype} matrix" if len(shape) == 2 else f"{dtype} other"
        elif dtype == "F8_E4M3":
            yield "mxfp8" if self.read(scale).dtype == torch.uint8 else "blocks"
        elif scale + ".csf_base" in self.weight_map:
            yield from ("csf", "block codec", "fp4")
            if len(self.read(scale + ".csf_escape_value")):
                yield "block codec with escapes"
            if int(self.read(scale + ".csf_escape_count").max()) > 1:
                yield "block codec with two escapes"
        elif scale + ".nvfp4_csf_fixed" in self.weight_map:
            yield from ("csf", "slab codec", "fp4")
            if len(self.read(scale + ".nvfp4_csf_exceptions")) > 1:
                yield "slab codec with exceptions"
        elif dtype == "U8":
            yield from ("plain fp4", "fp4")

    def parts(self, module: str) -> list[str]:
        """Names of the tensors of a module."""
        return [name for name in self.weight_map if name.startswith(module + ".")]

    # Raw headers.

    def edit_header(self, shard: str, change: Callable[[dict[str, Any]], None]) -> None:
        raw = (self.folder / shard).read_bytes()
        size = int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8 : 8 + size])
        change(header)
        text = json.dumps(header).encode()
        self.replace(shard, len(text).to_bytes(8, "little") + text + raw[8 + size :])

    def shard_of(self, module: str) -> str:
        return self.weight_map[module + ".weight"]


Fault = Callable[[Copy], str]
FAULTS: dict[str, Fault] = {}


def fault(name: str) -> Callable[[Fault], Fault]:
    """Register a fault under a name."""

    def register(apply: Fault) -> Fault:
        if name in FAULTS:
            raise ValueError(name)
        FAULTS[name] = apply
        return apply

    return register


def damage(source: Path, target: Path, name: str, seed: int) -> str:
    """Copy `source` to `target` with one fault; returns what an audit must name."""
    copy = Copy(source, target, random.Random(f"{name} {seed}"))
    return FAULTS[name](copy)


def applicable(source: Path, scratch: Path) -> list[str]:
    """The faults that can be done to a checkpoint."""
    names = []
    for number, name in enumerate(FAULTS):
        try:
            damage(source, scratch / str(number), name, 0)
        except NotApplicableError:
            continue
        finally:
            shutil.rmtree(scratch / str(number), ignore_errors=True)
        names.append(name)
    return names
