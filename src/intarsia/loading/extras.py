"""Everything of an exported checkpoint but its shards: index, configuration, metadata, companions, record."""

import hashlib
import stat
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from intarsia.checkpoint import Checkpoint, Module
from intarsia.checkpoint.write import json_bytes
from intarsia.families.groups import container_of
from intarsia.loading.metadata import carriers, quantized_layers, stored_layers
from intarsia.loading.workspace import Json, canonical
from intarsia.selection.manifest import manifest_hash
from intarsia.selection.resolve import Selection

RECORD = "conversion.json"
RECORD_SCHEMA = "intarsia.conversion/1"

# Files that belong to a model besides its weights. Code and pickles are never copied.
_COPIED_SUFFIXES = frozenset([".json", ".jinja", ".txt", ".model", ".md", ".tiktoken"])
_COPIED_NAMES = frozenset(["LICENSE", "NOTICE"])
_WRITTEN_HERE = frozenset(["config.json", "hf_quant_config.json", "model.safetensors.index.json", RECORD])
_MAX_COPIED = 1 << 28


def companion_files(folder: Path) -> Mapping[str, Path]:
    """Tokenizer, templates, generation settings and the like, by name; only regular files of known kinds."""
    found = {}
    for path in sorted(folder.iterdir()):
        known = path.suffix in _COPIED_SUFFIXES or path.name in _COPIED_NAMES
        if not known or path.name in _WRITTEN_HERE or path.name.startswith("."):
            continue
        status = path.stat()
        if stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_COPIED:
            found[path.name] = path
    return found


def export_files(
    checkpoint: Checkpoint,
    modules: Mapping[str, Module],
    selection: Selection,
    records: Sequence[Json],
    companions: Mapping[str, Path],
) -> Iterator[tuple[str, bytes]]:
    """Name and content of every small file, from the records of the written shards."""
    weight_map = {tensor: record["file"] for record in records for tensor in record["tensors"]}
    total = sum(size for record in records for size in record["nbytes"].values())
    order = [*checkpoint.tensors, *sorted(weight_map.keys() - checkpoint.tensors.keys())]
    index = {
        "metadata": {"total_size": total},
        "weight_map": {name: weight_map[name] for name in order if name in weight_map},
    }
    yield "model.safetensors.index.json", json_bytes(index)
    config = dict(checkpoint.config)
    if selection.targets:
        layers = stored_layers(modules, selection.targets) | quantized_layers(selection.targets.values())
        nested, flat = carriers(layers, checkpoint.quantization.kv_algo)
        config["quantization_config"] = flat
        yield "hf_quant_config.json", json_bytes(nested)
    elif (checkpoint.path / "hf_quant_config.json").is_file():
        yield "hf_quant_config.json", (checkpoint.path / "hf_quant_config.json").read_bytes()
    yield "config.json", json_bytes(config)
    for name, path in companions.items():
        yield name, path.read_bytes()
    digests = {name: digest for record in records for name, digest in record["tensors"].items()}
    yield RECORD, canonical(conversion_record(checkpoint, selection, digests))


def conversion_record(checkpoint: Checkpoint, selection: Selection, digests: Mapping[str, str]) -> Json:
    """What an export was made of and what it holds; the same for every run that writes the same bytes.

    Source files are named by size; their content is covered by the tensors' digests where it was copied, and
    by the encoders being pure functions where it was not.
    """
    kept = {
        container_of(name) or name: module.format
        for name, module in selection.source.modules.items()
        if module.quantized and name not in selection.targets
    }
    document: dict[str, Any] = {
        "schema": RECORD_SCHEMA,
        "version": version("intarsia"),
        "source": {
            "model_type": selection.source.identity.model_type,
            "inventory_sha256": selection.source.identity.inventory_sha256,
            "files": [{"name": shard.name, "size": shard.size} for shard in checkpoint.shards],
        },
        "manifest": msgspec.to_builtins(selection.manifest),
        "manifest_sha256": manifest_hash(selection.manifest),
        "kept": kept,
        "tensors": dict(digests),
    }
    return document


def file_sha256(path: Path) -> str:
    """sha256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
