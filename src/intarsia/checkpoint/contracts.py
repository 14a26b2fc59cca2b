"""Holding the stored tensors of a module against one algorithm's contract: exact set, types and shapes."""

from collections.abc import Iterable, Mapping
from math import prod
from typing import NamedTuple

from intarsia.checkpoint.algorithms import Contract
from intarsia.checkpoint.entry import TensorEntry
from intarsia.formats import CsfError, csf

Tensors = Mapping[str, TensorEntry]

# Companions that any module may have; they say nothing about its format.
FREE = frozenset(("bias", "k_scale", "v_scale", "q_scale", "k_bias", "v_bias"))

SCALES = ("weight_scale", "weight_scale_inv")
_OLD_COMPONENTS = ("nvfp4_lsc_fixed", "nvfp4_lsc_exceptions", "exact_mxfp4_fixed", "exact_mxfp4_exceptions")


class Issue(NamedTuple):
    """One way in which tensors break a contract; `suffix` is the tensor it is about."""

    rule: str
    suffix: str
    found: str
    expected: str


def logical_shape(contract: Contract, weight: TensorEntry) -> tuple[int, ...]:
    """[.., rows, columns] of the weight that the stored one encodes."""
    shape = weight.shape
    if contract.payload:
        return (*shape[:-2], shape[-2] * contract.group)
    if contract.row_pairs:
        return (*shape[:-2], shape[-2] * 2, shape[-1])
    return (*shape[:-1], shape[-1] * contract.per_byte)


def contract_issues(contract: Contract, tensors: Tensors, codec: str | None) -> list[Issue]:
    """Every way in which a module's tensors differ from what the algorithm stores.

    `codec` names the compressed form that the block scales are expected in; None expects them plain.
    """
    weight = tensors.get(contract.weight)
    if weight is None:
        return [Issue("missing-companion", contract.weight, "no such tensor", f"it for {contract.name}")]
    issues = _weight_issues(contract, weight)
    if issues:
        return issues
    rows, columns = logical_shape(contract, weight)[-2:]
    if contract.grid == "groups" and columns % contract.group:
        return [Issue("scale-grid", contract.weight, f"{columns} columns", f"a multiple of {contract.group}")]
    lead = weight.shape[:-2] if not contract.payload else ()
    used = {contract.weight}
    if contract.grid != "none":
        issues += _scale_issues(contract, tensors, codec, lead, rows, columns, used)
    for suffix in contract.scalars:
        used.add(suffix)
        issues += _scalar_issues(contract, tensors.get(suffix), suffix, lead)
    for suffix in contract.optional & tensors.keys():
        used.add(suffix)
        if suffix == "input_scale":
            issues += _scalar_issues(contract, tensors[suffix], suffix, lead)
    issues += [
        Issue("stray-tensor", suffix, entry.dtype, f"only {', '.join(sorted(used))} for {contract.name}")
        for suffix, entry in tensors.items()
        if suffix not in used and suffix not in FREE
    ]
    return issues


def _weight_issues(contract: Contract, weight: TensorEntry) -> list[Issue]:
    ranks = (3,) if contract.payload else (2, 3)
    if weight.dtype != contract.weight_dtype:
        return [
            Issue(
                "weight-dtype", contract.weight, weight.dtype, f"{contract.weight_dtype} for {contract.name}"
            )
        ]
    if len(weight.shape) not in ranks or not prod(weight.shape):
        found, expected = (
            f"shape {list(weight.shape)}",
            "[rows, columns] or [experts, rows, columns], not empty",
        )
        return [Issue("weight-shape", contract.weight, found, expected)]
    if contract.payload and weight.shape[-1] != contract.payload:
        return [
            Issue(
                "weight-shape",
                contract.weight,
                f"shape {list(weight.shape)}",
                f"[rows, blocks, {contract.payload}]",
            )
        ]
    return []


def _scale_issues(
    contract: Contract,
    tensors: Tensors,
    codec: str | None,
    lead: tuple[int, ...],
    rows: int,
    columns: int,
    used: set[str],
) -> list[Issue]:
    names = [name for name in contract.scale_names if name in tensors]
    parts = {suffix for suffix in tensors if suffix.partition(".")[0] in SCALES and "." in suffix}
    if len(names) > 1 or (names and parts):
        used.update(names, parts)
        found = ", ".join([*names, *sorted(parts)[:5]])
        return [Issue("scale-twice", names[0], found, "one form of the scales")]
    if codec is not None:
        used.update(parts, names)
        return _component_issues(contract, tensors, codec, parts, rows, columns)
    if not names:
        used.update(parts)
        found = f"only {', '.join(sorted(parts)[:5])}" if parts else "no such tensor"
        return [Issue("missing-companion", contract.scale_names[0], found, f"it for {contract.name}")]
    scale = tensors[names[0]]
    used.add(names[0])
    issues = []
    if scale.dtype not in contract.scale_dtypes:
        issues.append(
            Issue(
                "scale-dtype",
                names[0],
                scale.dtype,
                f"{' or '.join(contract.scale_dtypes)} for {contract.name}",
            )
        )
    shapes = _grids(contract, lead, rows, columns)
    if scale.shape not in shapes:
        expected = " or ".join(str(list(shape)) for shape in shapes)
        swizzled = ", a layout for kernels" if len(scale.shape) == 1 and contract.grid == "groups" else ""
        issues.append(
            Issue(
                "scale-grid",
                names[0],
                f"shape {list(scale.shape)}{swizzled}",
                f"{expected} for {contract.name}",
            )
        )
    return issues


def _grids(contract: Contract, lead: tuple[int, ...], rows: int, columns: int) -> list[tuple[int, ...]]:
    """The shapes the block scales may have."""
    if contract.grid == "groups":
        return [(*lead, rows, columns // contract.group)]
    if contract.grid == "rows":
        return [(*lead, rows), (*lead, rows, 1)]
    if contract.grid == "blocks":
        down, across = -(-rows // contract.group), -(-columns // contract.group)
        return [(*lead, down, across), (*lead, down, 1, across, 1)]
    return [lead, (*lead, 1)]


def _scalar_issues(
    contract: Contract, entry: TensorEntry | None, suffix: str, lead: tuple[int, ...]
) -> list[Issue]:
    """A global scale is one F32 number, or one an expert (and fused part) of a stack."""
    if entry is None:
        return [Issue("missing-companion", suffix, "no such tensor", f"it for {contract.name}")]
    issues = []
    if entry.dtype != "F32":
        issues.append(Issue("global-dtype", suffix, entry.dtype, "F32: a global scale is not cast"))
    fits = entry.shape in ((), (1,), lead, (*lead, 1)) or (lead and entry.shape[:-1] == lead)
    if not fits:
        issues.append(Issue("global-shape", suffix, f"shape {list(entry.shape)}", "one number"))
    return issues


def _component_issues(
    contract: Contract, tensors: Tensors, codec: str, parts: Iterable[str], rows: int, columns: int
) -> list[Issue]:
    """Compressed scales: the exact set of components, their types and their lengths."""
    prefix = contract.scale_names[0]
    if not contract.name.endswith("MXFP4" if codec == "mxfp4_slab" else "NVFP4"):
        return [Issue("csf-recipe", prefix, f"scales in {codec}", f"plain scales for {contract.name}")]
    scales = columns // contract.group
    problem = ""
    try:
        csf.CODECS[codec].require_matrix(rows, scales)
    except CsfError as error:
        problem = f"{error.found} of scales; {error.expected}"
    if problem:
        return [Issue("scale-grid", prefix, problem, f"a matrix that {codec} can hold")]
    wanted = csf.components(codec)
    issues = []
    for suffix in sorted(set(parts) - {f"{prefix}.{part}" for part in wanted}):
        old = suffix.partition(".")[2] in _OLD_COMPONENTS
        found = "a component of an older name" if old else "a tensor that is no part of the codec"
        issues.append(Issue("stray-tensor", suffix, found, f"only {', '.join(wanted)} for {codec}"))
    for part in wanted:
        suffix = f"{prefix}.{part}"
        entry = tensors.get(suffix)
        if entry is None:
            expected = f"all of {', '.join(wanted)} for {codec}"
            issues.append(Issue("missing-companion", suffix, "no such tensor", expected))
        else:
            issues += _component_layout(codec, part, suffix, entry, rows, scales)
    streams = [tensors.get(f"{prefix}.csf_escape_{part}") for part in ("position", "value")]
    if not issues and streams[0] and streams[1] and streams[0].shape != streams[1].shape:
        found = f"shape {list(streams[1].shape)}"
        expected = f"shape {list(streams[0].shape)}, as csf_escape_position"
        issues.append(Issue("scale-grid", f"{prefix}.csf_escape_value", found, expected))
    return issues


def _component_layout(
    codec: str, part: str, suffix: str, entry: TensorEntry, rows: int, columns: int
) -> list[Issue]:
    issues = []
    dtype, shapes, most = component_layout(codec, part, rows, columns)
    if entry.dtype != dtype:
        issues.append(Issue("scale-dtype", suffix, entry.dtype, f"{dtype} for {codec}"))
    if shapes and entry.shape not in shapes:
        expected = " or ".join(str(list(shape)) for shape in shapes)
        issues.append(Issue("scale-grid", suffix, f"shape {list(entry.shape)}", f"{expected} for {codec}"))
    if not shapes and (len(entry.shape) != 1 or entry.shape[0] > most):
        issues.append(
            Issue(
                "scale-grid",
                suffix,
                f"shape {list(entry.shape)}",
                f"one dimension of at most {most} for {codec}",
            )
        )
    return issues


def component_layout(
    codec: str, part: str, rows: int, columns: int
) -> tuple[str, list[tuple[int, ...]], int]:
    """Type, allowed shapes (none: one dimension of any length) and greatest length of a component."""
    if codec == "csf_32x2_v1":
        grid = (-(-rows // 32), -(-columns // 2))
        shapes = {"csf_base": grid, "csf_codes": (*grid, 32), "csf_escape_count": grid}
        return "U8", [shapes[part]] if part in shapes else [], rows * columns
    if part.endswith("_exceptions"):
        return "U32", [], rows * columns
    bits = 1 if codec == "mxfp4_slab" else 4
    slab = 16 * (1 + -(-columns * bits // 8))
    return "U8", [(-(-rows // 16), slab), (-(-rows // 16) * slab,)], 0
