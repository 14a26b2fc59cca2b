"""Writing a converted checkpoint: module by module from the source, complete or not at all."""

import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec
import torch

from intarsia.checkpoint import Checkpoint, Reader, open_checkpoint, write_checkpoint
from intarsia.checkpoint.write import DEFAULT_SHARD_BYTES, json_bytes
from intarsia.core.progress import SILENT, Phase, Progress
from intarsia.loading.encode import Unit, encode_unit, units
from intarsia.loading.errors import ConvertError
from intarsia.loading.metadata import carriers, quantized_layers
from intarsia.selection.manifest import Codec, Manifest, ScalePolicy
from intarsia.selection.recipes import apply_recipe
from intarsia.selection.resolve import Selection, resolve
from intarsia.selection.source import source_of

CsfChoice = Literal["block", "slab", "none"]
_CODECS: dict[str, Codec] = {"block": "csf_32x2_v1", "slab": "nvfp4_slab"}

# Files that belong to a model besides its weights. Code and pickles are never copied.
_COPIED_SUFFIXES = frozenset([".json", ".jinja", ".txt", ".model", ".md", ".tiktoken"])
_COPIED_NAMES = frozenset(["LICENSE", "NOTICE"])
_WRITTEN_HERE = frozenset(["config.json", "hf_quant_config.json", "model.safetensors.index.json"])
_MAX_COPIED = 1 << 28


def convert(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    recipe: str | None = None,
    manifest: Manifest | None = None,
    csf: CsfChoice | None = None,
    shard_size: int = DEFAULT_SHARD_BYTES,
    progress: Progress = SILENT,
) -> Checkpoint:
    """Writes the checkpoint that a recipe or a manifest makes of `source`, and returns it opened.

    What the selection does not name is copied byte for byte. `csf` overrides how the main section's expert
    scales are kept. Shards go to `tensors/`, the metadata into both ModelOpt carriers; tokenizer, templates
    and generation settings are copied. The source is only read. `out` must not exist; it appears complete or
    not at all.

    Raises SelectionError before a weight is read, ConvertError for a weight that cannot be encoded, and the
    checkpoint layer's errors for reading and writing.
    """
    checkpoint = open_checkpoint(source)
    _refuse_quantized(checkpoint)
    _refuse_overlap(checkpoint.path, Path(out))
    selection = select(checkpoint, recipe=recipe, manifest=manifest, csf=csf)
    layers = quantized_layers(selection.targets.values())
    config = dict(checkpoint.config)
    extra: dict[str, bytes | Path] = dict(companion_files(checkpoint.path))
    if layers:
        nested, flat = carriers(layers)
        config["quantization_config"] = flat
        extra["hf_quant_config.json"] = json_bytes(nested)
    total = sum(entry.nbytes for entry in checkpoint.tensors.values())
    with checkpoint.reader() as reader, progress.phase("converting", total) as phase:
        return write_checkpoint(
            out,
            converted_tensors(checkpoint, selection, reader, phase),
            config=config,
            shard_size=shard_size,
            shard_name=_shard_name,
            extra_files=extra,
        )


def select(
    checkpoint: Checkpoint, *, recipe: str | None, manifest: Manifest | None, csf: CsfChoice | None = None
) -> Selection:
    """The resolved selection of a recipe or a manifest (exactly one of them) on an opened checkpoint."""
    if (recipe is None) == (manifest is None):
        raise ConvertError("conversion", found="a recipe and a manifest, or neither", expected="one of them")
    source = source_of(checkpoint)
    chosen = manifest if manifest is not None else apply_recipe(recipe or "", source)
    if csf is not None:
        chosen = _with_csf(chosen, csf)
    return resolve(chosen, source)


def _with_csf(manifest: Manifest, choice: CsfChoice) -> Manifest:
    policy = ScalePolicy() if choice == "none" else ScalePolicy("csf", _CODECS[choice])
    return msgspec.structs.replace(manifest, main=msgspec.structs.replace(manifest.main, scales=policy))


def converted_tensors(
    checkpoint: Checkpoint, selection: Selection, reader: Reader, phase: Phase
) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and tensor of everything the converted checkpoint holds, in the source's order.

    A matrix is encoded when its first member's turn comes; only one unit's source is in memory.
    """
    by_weight: dict[str, Unit] = {}
    for unit in units(selection):
        for target in unit.targets:
            by_weight[f"{target.module}.weight"] = unit
    done: set[str] = set()
    for name, entry in checkpoint.tensors.items():
        if name in done:
            continue
        found = by_weight.get(name)
        if found is None:
            yield name, reader.read_entry(entry)
            phase.advance(entry.nbytes)
            continue
        entries = [checkpoint.tensors[f"{target.module}.weight"] for target in found.targets]
        weights = [reader.read_entry(member) for member in entries]
        for target, tensors in encode_unit(found, weights):
            for suffix, tensor in tensors.items():
                yield f"{target.module}.{suffix}", tensor
        done.update(member.name for member in entries)
        phase.advance(sum(member.nbytes for member in entries))


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


def _shard_name(index: int, count: int) -> str:
    return f"tensors/model-{index:05d}-of-{count:05d}.safetensors"


def _refuse_quantized(checkpoint: Checkpoint) -> None:
    if checkpoint.quantization.method is not None:
        raise ConvertError(
            str(checkpoint.path),
            found=f"a checkpoint quantized by {checkpoint.quantization.method}",
            expected="an unquantized source",
            action="convert the BF16 checkpoint it was made from",
        )


def _refuse_overlap(source: Path, out: Path) -> None:
    inside = source.resolve()
    if out.resolve() == inside or inside in out.resolve().parents:
        raise ConvertError(
            str(out),
            found="a path inside the source",
            expected="a folder of its own",
            action="choose another path",
        )
