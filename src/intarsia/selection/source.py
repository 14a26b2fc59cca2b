"""What a selection is made on: the modules of a source checkpoint, from headers alone."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from intarsia.checkpoint import Checkpoint, modules
from intarsia.core.errors import Violation
from intarsia.families.groups import container_of
from intarsia.families.registry import Family, family_of
from intarsia.selection.manifest import SourceIdentity, inventory_hash

Kind = Literal["linear", "expert", "other", "unknown"]
PLAIN = frozenset(["BF16", "F16", "F32"])
Headers = Mapping[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class SourceModule:
    """One module that owns a `weight`. `format` is the number format it is stored in.

    `kind` is "unknown" where the architecture has no data: then any matrix may be selected by its exact name.
    `shape` is the logical shape; `input_scale` says that calibrated activation scales are stored.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    format: str
    kind: Kind
    draft: bool = False
    input_scale: bool = False
    used: bool = True

    @property
    def quantized(self) -> bool:
        return self.format not in PLAIN


@dataclass(frozen=True, slots=True)
class Source:
    """A source checkpoint as selection sees it; `violations`: where headers contradict the configuration."""

    family: Family
    modules: Mapping[str, SourceModule]
    identity: SourceIdentity
    violations: tuple[Violation, ...] = ()
    containers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def describe_source(config: Mapping[str, Any], tensors: Headers, stored: Mapping[str, str]) -> Source:
    """The source with these headers (name -> safetensors dtype and shape).

    `stored` gives the number format of every module that is not plain. Raises ConfigError when the
    architecture is known and its configuration is refused.
    """
    family = family_of(config)
    violations: list[Violation] = []
    modules: dict[str, SourceModule] = {}
    containers: dict[str, list[str]] = {}
    for name, (dtype, shape) in tensors.items():
        if not name.endswith(".weight"):
            continue
        module = name.removesuffix(".weight")
        format_name = stored.get(module, dtype)
        modules[module] = _module(family, module, dtype, shape, format_name, tensors)
        container = container_of(module)
        if container is not None:
            containers.setdefault(container, []).append(module)
    if family.tensors is not None:
        violations += _against_inventory(family, modules)
    violations += _same_name(family, modules)
    identity = SourceIdentity(family.name, len(tensors), inventory_hash(tensors))
    members = {name: tuple(found) for name, found in containers.items()}
    return Source(family, modules, identity, tuple(violations), members)


def source_of(checkpoint: Checkpoint) -> Source:
    """The source that an opened checkpoint is. Raises what `describe_source` and `modules` raise."""
    headers = {name: (entry.dtype, entry.shape) for name, entry in checkpoint.tensors.items()}
    stored = {
        module.name: module.format for module in modules(checkpoint).values() if module.format is not None
    }
    return describe_source(checkpoint.config, headers, stored)


def _module(
    family: Family, module: str, dtype: str, shape: tuple[int, ...], format_name: str, tensors: Headers
) -> SourceModule:
    kind: Kind = "unknown" if len(shape) == 2 else "other"
    used = True
    if family.tensors is not None:
        spec = family.tensors.get(f"{module}.weight")
        used = spec is not None and spec.part != "vision"
        kind = (
            "other"
            if spec is None or not spec.quantizable
            else ("expert" if spec.role == "expert" else "linear")
        )
    elif container_of(module) is not None:
        kind = "expert"
    if format_name not in PLAIN and dtype in ("U8", "I8") and len(shape) == 2:
        shape = (shape[0], 2 * shape[1])  # two four-bit codes a byte
    return SourceModule(
        module,
        shape,
        dtype,
        format_name,
        kind,
        family.is_draft(module),
        f"{module}.input_scale" in tensors,
        used,
    )


def _against_inventory(family: Family, modules: Mapping[str, SourceModule]) -> list[Violation]:
    """Right name, wrong value: a tensor whose shape is not the architecture's."""
    found = []
    for module in modules.values():
        spec = family.tensors.get(f"{module.name}.weight") if family.tensors is not None else None
        if spec is not None and spec.shape != module.shape:
            found.append(
                Violation(
                    "source-shape",
                    module.name,
                    f"shape {list(module.shape)}",
                    f"shape {list(spec.shape)} by config.json",
                    "use the configuration that belongs to these weights",
                )
            )
    return found


def _same_name(family: Family, modules: Mapping[str, SourceModule]) -> list[Violation]:
    """Two source modules that a runtime would know by one name."""
    first: dict[str, str] = {}
    found = []
    for name in modules:
        other = first.setdefault(family.key(name), name)
        if other != name:
            found.append(
                Violation(
                    "same-name", name, f"also stored as {other}", "each module once", "remove one of them"
                )
            )
    return found
