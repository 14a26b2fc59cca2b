"""What is in a checkpoint: formats by module class, bytes, shards, recipes, and anything odd."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from intarsia.checkpoint.checkpoint import Checkpoint, open_checkpoint
from intarsia.checkpoint.collector import collector_paused
from intarsia.checkpoint.completeness import Groups
from intarsia.checkpoint.dtypes import SUB_BYTE
from intarsia.checkpoint.module import Module
from intarsia.checkpoint.resolution import resolve
from intarsia.checkpoint.verdicts import main_layers, part_of
from intarsia.core.errors import Violation

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass(frozen=True, slots=True)
class ClassSummary:
    """All modules whose names differ only in numbers and that are stored alike.

    `elements` counts weights, not codes or scales.
    """

    name: str
    part: str
    format: str
    codec: str | None
    modules: int
    elements: int
    bytes: int


@dataclass(frozen=True, slots=True)
class FormatSummary:
    """All modules of one format."""

    format: str
    codec: str | None
    modules: int
    elements: int
    bytes: int


@dataclass(frozen=True, slots=True)
class ShardSummary:
    """One file."""

    name: str
    bytes: int
    tensors: int
    metadata: dict[str, str]


@dataclass(frozen=True, slots=True)
class RecipeSummary:
    """How many entries of the metadata name a recipe."""

    recipe: str
    written: str
    entries: int


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """A part of a model that may be missing: `state` is present, absent or partial."""

    name: str
    state: str
    tensors: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything `inspect` shows; plain data, so it turns into JSON as it is.

    `weight_bytes` counts every shard file once, `tensor_bytes` the stored tensors in them.
    """

    path: str
    model_type: str | None
    architectures: list[str]
    tensors: int
    weight_bytes: int
    tensor_bytes: int
    quantization: dict[str, Any]
    recipes: list[RecipeSummary]
    formats: list[FormatSummary]
    classes: list[ClassSummary]
    groups: list[GroupSummary]
    shards: list[ShardSummary]
    violations: list[Violation] = field(default_factory=list)
    notes: list[Violation] = field(default_factory=list)


def summarize(checkpoint: Checkpoint | str | os.PathLike[str], *, optional: Groups | None = None) -> Summary:
    """Describe a checkpoint from its headers; what is wrong with it is listed, not raised.

    `optional` names groups of tensors that belong together, which lets a partly present group be told from
    a present one. Raises NotACheckpointError.
    """
    if not isinstance(checkpoint, Checkpoint):
        checkpoint = open_checkpoint(checkpoint, strict=False)
    resolution = resolve(checkpoint)
    with collector_paused():
        layers = main_layers(checkpoint.config)
        parts = {name: part_of(name, layers) for name in resolution.modules}
        classes = _classes(resolution.modules, parts)
        return Summary(
            path=str(checkpoint.path),
            model_type=_text(checkpoint.config.get("model_type")),
            architectures=_texts(checkpoint.config.get("architectures")),
            tensors=len(checkpoint.tensors),
            weight_bytes=checkpoint.weight_bytes,
            tensor_bytes=sum(entry.nbytes for entry in checkpoint.tensors.values()),
            quantization=_quantization(checkpoint),
            recipes=_recipes(checkpoint),
            formats=_formats(classes),
            classes=classes,
            groups=_groups(checkpoint, resolution.modules, parts, optional or {}),
            shards=[
                ShardSummary(shard.name, shard.size, shard.tensor_count, dict(shard.metadata))
                for shard in checkpoint.shards
            ],
            violations=[*checkpoint.problems, *resolution.violations],
            notes=[*resolution.notes, *_sub_byte(checkpoint)],
        )


def class_name(module: str) -> str:
    """A module's name with its numbers replaced by `*`."""
    return _NUMBER.sub("*", module)


def _classes(modules: Mapping[str, Module], parts: Mapping[str, str]) -> list[ClassSummary]:
    """Totals by (name without numbers, part, format, codec); plain modules by the type of what they hold."""
    totals: dict[tuple[str, str, str, str | None], list[int]] = {}
    for module in modules.values():
        for title, kind, elements, nbytes in _stored(module):
            key = title, parts[module.name], kind, module.codec
            total = totals.setdefault(key, [0, 0, 0])
            total[0] += 1
            total[1] += elements
            total[2] += nbytes
    return [
        ClassSummary(*key, *total) for key, total in sorted(totals.items(), key=lambda item: str(item[0]))
    ]


def _stored(module: Module) -> list[tuple[str, str, int, int]]:
    """Class, format, elements and bytes; plain modules are counted tensor by tensor."""
    title = class_name(module.name)
    if module.format is not None:
        return [(title, module.format, _product(module.shape or ()), module.nbytes)]
    rows = []
    for suffix, entry in module.tensors.items():
        name = title if suffix == "weight" else f"{title}.{suffix}".lstrip(".")
        rows.append((name, entry.dtype, _product(entry.shape), entry.nbytes))
    return rows


def _product(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _formats(classes: list[ClassSummary]) -> list[FormatSummary]:
    totals: dict[tuple[str, str | None], list[int]] = {}
    for row in classes:
        total = totals.setdefault((row.format, row.codec), [0, 0, 0])
        for place, count in enumerate((row.modules, row.elements, row.bytes)):
            total[place] += count
    rows = [FormatSummary(*key, *total) for key, total in totals.items()]
    return sorted(rows, key=lambda row: -row.bytes)


def _quantization(checkpoint: Checkpoint) -> dict[str, Any]:
    merged = checkpoint.quantization
    return {
        "method": merged.method,
        "algorithm": merged.algo,
        "kv_cache": merged.kv_algo,
        "producer": " ".join(merged.producer).strip() or None,
        "sources": list(merged.sources),
        "carriers_agree": len(merged.views) < 2,
        "exclude_patterns": len(merged.exclude),
    }


def _recipes(checkpoint: Checkpoint) -> list[RecipeSummary]:
    counts: dict[tuple[str, str], int] = {}
    view = checkpoint.quantization.views[0] if checkpoint.quantization.views else None
    if view is not None:
        single = [recipe for recipe in (view.algo, view.experts) if recipe is not None]
        grouped = [group.recipe for group in view.groups if group.recipe is not None]
        for recipe in [*single, *grouped, *(view.layers or {}).values()]:
            key = recipe.title, recipe.written
            counts[key] = counts.get(key, 0) + 1
    return [RecipeSummary(*key, count) for key, count in sorted(counts.items())]


def _groups(
    checkpoint: Checkpoint, modules: Mapping[str, Module], parts: Mapping[str, str], optional: Groups
) -> list[GroupSummary]:
    """Groups whose tensors the caller knows; without them, MTP layers and vision tower by their names."""
    stored = checkpoint.tensors
    groups = []
    for title, names in optional.items():
        held = [stored[name].nbytes for name in names if name in stored]
        state = "absent" if not held else "present" if len(held) == len(names) else "partial"
        groups.append(GroupSummary(title, state, len(held), sum(held)))
    if optional:
        return groups
    sizes: dict[str, list[int]] = {"mtp": [], "vision": []}
    for module in modules.values():
        if parts[module.name] in sizes:
            sizes[parts[module.name]] += [entry.nbytes for entry in module.tensors.values()]
    return [
        GroupSummary(part, "present" if held else "absent", len(held), sum(held))
        for part, held in sizes.items()
    ]


def _sub_byte(checkpoint: Checkpoint) -> list[Violation]:
    """Types of less than a byte are understood and not read."""
    found = [entry for entry in checkpoint.tensors.values() if entry.dtype in SUB_BYTE]
    if not found:
        return []
    kinds = ", ".join(sorted({entry.dtype for entry in found}))
    return [
        Violation(
            "sub-byte-type", found[0].name, f"{len(found)} tensors of {kinds}", "types that can be read"
        )
    ]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _texts(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
