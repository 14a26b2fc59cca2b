"""Holding a checkpoint against the tensors its architecture should have.

The list of expected tensors comes from the caller, who knows the architecture; shapes are those of the
unquantized model, so a quantized weight is compared by its logical shape.
"""

from collections.abc import Collection, Mapping

from intarsia.checkpoint.checkpoint import nearest
from intarsia.checkpoint.contracts import FREE
from intarsia.checkpoint.entry import TensorEntry
from intarsia.checkpoint.findings import Findings
from intarsia.checkpoint.module import Module
from intarsia.checkpoint.signature import split_name

Shapes = Mapping[str, tuple[int, ...]]
Groups = Mapping[str, Collection[str]]

NEAREST_FOR = 10  # a search costs some milliseconds, so only the first few names get one


def compare(
    modules: Mapping[str, Module],
    tensors: Mapping[str, TensorEntry],
    expected: Shapes,
    groups: Groups,
    findings: Findings,
    notes: Findings,
) -> None:
    """Missing, unexpected and misshapen tensors go to `findings`; absent optional groups to `notes`."""
    missing = _check_expected(modules, tensors, expected, findings)
    _report_missing(missing, tensors, expected, groups, findings, notes)
    for number, name in enumerate(_unexpected(modules, expected)):
        near = nearest(name, expected, 1) if number < NEAREST_FOR else []
        findings.add(
            "unexpected-tensor",
            name,
            f"a tensor in {tensors[name].shard} that the architecture does not have",
            "only tensors of the architecture",
            f"nearest: {near[0]}" if near else "",
        )


def _check_expected(
    modules: Mapping[str, Module],
    tensors: Mapping[str, TensorEntry],
    expected: Shapes,
    findings: Findings,
) -> list[str]:
    """Compare shapes; returns the names that are missing."""
    missing = []
    for name, shape in expected.items():
        module_name, suffix = split_name(name)
        module = modules.get(module_name)
        if module is not None and suffix == "weight" and module.format is not None:
            found = module.shape
        else:
            entry = tensors.get(name)
            found = entry.shape if entry is not None else None
        if found is None:
            missing.append(name)
        elif found != tuple(shape):
            transposed = ", the transpose" if found[::-1] == tuple(shape) else ""
            findings.add(
                "tensor-shape",
                name,
                f"shape {list(found)}{transposed}",
                f"shape {list(shape)} by the configuration",
                "use the configuration that belongs to these weights",
            )
    return missing


def _report_missing(
    missing: list[str],
    tensors: Mapping[str, TensorEntry],
    expected: Shapes,
    groups: Groups,
    findings: Findings,
    notes: Findings,
) -> None:
    lacking = set(missing)
    for title, names in groups.items():
        members = set(names) & expected.keys()
        absent = members & lacking
        if members and absent == members:
            notes.add("group-absent", title, f"none of its {len(members)} tensors", "it, for what it serves")
            lacking -= members
        elif absent:
            findings.add(
                "group-partial",
                title,
                f"{len(absent)} of {len(members)} tensors missing: {', '.join(sorted(absent)[:3])}",
                "all of them, or none",
                "download the missing shard",
            )
    for number, name in enumerate(name for name in missing if name in lacking):
        near = nearest(name, tensors, 1) if number < NEAREST_FOR else []
        findings.add(
            "missing-tensor",
            name,
            "no such tensor",
            f"shape {list(expected[name])} by the configuration",
            f"nearest: {near[0]}" if near else "download the missing shard",
        )


def _unexpected(modules: Mapping[str, Module], expected: Shapes) -> list[str]:
    """Stored tensors that are neither expected nor companions of an expected weight."""
    names = []
    for module in modules.values():
        known = module.format is not None and f"{module.name}.weight" in expected
        for suffix, entry in module.tensors.items():
            if entry.name in expected:
                continue
            companion = known and suffix not in FREE
            kv_scale = suffix in ("k_scale", "v_scale") and f"{module.name}.weight" in expected
            if not companion and not kv_scale:
                names.append(entry.name)
    return names
