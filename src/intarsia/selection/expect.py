"""Does a checkpoint hold exactly what a manifest selects? From headers and metadata, without its source.

This finds what a check at loading time cannot: modules that some other program quantized, and targets that
have the right name and another format or shape.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from intarsia import formats
from intarsia.checkpoint import Checkpoint, resolve
from intarsia.core.errors import Violation
from intarsia.families.groups import container_of
from intarsia.selection.manifest import Manifest
from intarsia.selection.names import NameIndex, is_pattern
from intarsia.selection.resolve import scale_policy
from intarsia.selection.source import PLAIN, Source, describe_source


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a manifest wants of one module: its format, and the codec of its scales (None: plain)."""

    format: str
    codec: str | None
    named_as: str


def expect(
    checkpoint: Checkpoint, manifest: Manifest, *, kept: Mapping[str, str] | None = None
) -> list[Violation]:
    """Every way in which the checkpoint is not the manifest's selection; empty when it is exactly that.

    `kept` names modules (or experts containers) that were quantized before the selection and their formats;
    without it, every quantized module that the manifest does not name is one too many.
    """
    resolution = resolve(checkpoint)
    violations = [*checkpoint.problems, *resolution.violations]
    headers = {name: (entry.dtype, entry.shape) for name, entry in checkpoint.tensors.items()}
    stored = {m.name: m.format for m in resolution.modules.values() if m.format is not None}
    source = describe_source(checkpoint.config, headers, stored)
    violations += source.violations
    wanted = wanted_modules(manifest, source, violations)
    alike = _Alike(violations)
    for name, want in wanted.items():
        module = resolution.modules[name]
        found = module.format or source.modules[name].format
        if found in PLAIN:
            alike.add("not-converted", name, f"{found}, unquantized", f"{want.format} by {want.named_as}")
        elif found != want.format:
            alike.add("other-format", name, found, f"{want.format} by {want.named_as}")
        elif module.codec != want.codec:
            alike.add("scale-encoding", name, module.codec or "plain scales", want.codec or "plain scales")
    known = kept or {}
    for name, format_name in stored.items():
        if name in wanted:
            continue
        before = known.get(name) or known.get(container_of(name) or "")
        if before is None:
            alike.add("extra-conversion", name, format_name, "a module that the manifest leaves as it was")
        elif before != format_name:
            alike.add("other-format", name, format_name, f"{before}, as before the selection")
    alike.finish()
    return violations


def wanted_modules(manifest: Manifest, source: Source, violations: list[Violation]) -> dict[str, Wanted]:
    """Module -> what the manifest wants of it; names without a module are noted."""
    result: dict[str, Wanted] = {}
    for section_name, section in manifest.sections().items():
        index = NameIndex(source, source.family.groupings.get(section.grouping, ()))
        scales = scale_policy(manifest, section_name)
        policies = {
            container_of(members[0]): policy
            for layer, policy in scales.layers.items()
            if (members := index.lookup(layer))
        }
        for key, wanted in section.targets.items():
            names = index.match(key) if is_pattern(key) else index.lookup(key)
            if not names:
                near = ", ".join(index.nearest(key)) if not is_pattern(key) else ""
                violations.append(
                    Violation(
                        "missing-target",
                        key,
                        "nothing of that name",
                        "a module of the checkpoint",
                        f"nearest: {near}" if near else "",
                    )
                )
            for name in names:
                format_name = formats.canonical(wanted)
                container = container_of(name)
                compressed = container is not None and format_name.endswith("NVFP4")
                policy = policies.get(container, scales.policy)
                codec = scales.codec if compressed and policy == "csf" else None
                result[name] = Wanted(format_name, codec, key)
    return result


class _Alike:
    """Hundreds of experts with one fault are one violation that names the first and counts the rest."""

    def __init__(self, violations: list[Violation]) -> None:
        self._violations = violations
        self._found: dict[tuple[str, str, str, str], list[str]] = {}

    def add(self, rule: str, where: str, found: str, expected: str) -> None:
        self._found.setdefault((rule, container_of(where) or where, found, expected), []).append(where)

    def finish(self) -> None:
        for (rule, _, found, expected), names in self._found.items():
            more = f", and {len(names) - 1} more experts' matrices alike" if len(names) > 1 else ""
            self._violations.append(Violation(rule, names[0], found + more, expected))
