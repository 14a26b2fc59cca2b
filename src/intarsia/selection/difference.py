"""What two selections differ in, or a selection and a checkpoint."""

from dataclasses import dataclass
from typing import Any

import msgspec

from intarsia.families.groups import container_of
from intarsia.selection.expect import wanted_modules
from intarsia.selection.manifest import Manifest, Section
from intarsia.selection.source import Source


@dataclass(frozen=True, slots=True)
class Difference:
    """One module or setting that is not the same on both sides; None where a side does not have it."""

    name: str
    first: str | None
    second: str | None


def diff_manifests(a: Manifest, b: Manifest, source: Source | None = None) -> list[Difference]:
    """Targets and settings in which two manifests differ.

    With a `source` names are resolved on it first, so that a fused name and its members, or a run-time name
    and the checkpoint's, count as the same. Without one, names are compared as they are written.
    """
    if source is not None:
        first, second = (_resolved(manifest, source) for manifest in (a, b))
    else:
        first, second = (_written(manifest) for manifest in (a, b))
    found = _compare(first, second)
    for name in dict.fromkeys([*a.sections(), *b.sections()]):
        one, other = a.sections().get(name), b.sections().get(name)
        found += _compare(_settings(name, one), _settings(name, other))
    identities = [_identity(manifest) for manifest in (a, b)]
    return found + _compare(identities[0], identities[1])


def diff_checkpoint(manifest: Manifest, checkpoint: Source) -> list[Difference]:
    """Modules whose stored format is not the one that the manifest says; first the manifest, then the file.

    A module the manifest does not name is expected plain.
    """
    wanted = _resolved(manifest, checkpoint)
    stored: dict[str, str] = {}
    for name, module in checkpoint.modules.items():
        label = container_of(name) or name
        if module.quantized or label in wanted:
            stored[label] = module.format if module.quantized else f"{module.format}, unquantized"
    return _compare(wanted, stored)


def _resolved(manifest: Manifest, source: Source) -> dict[str, str]:
    found = wanted_modules(manifest, source, [])
    result = {container_of(name) or name: want.format for name, want in found.items()}
    for section in manifest.sections().values():
        for key, wanted in section.targets.items():
            if not any(want.named_as == key for want in found.values()):
                result[key] = wanted
    return result


def _written(manifest: Manifest) -> dict[str, str]:
    return {
        f"{name}: {key}": wanted
        for name, section in manifest.sections().items()
        for key, wanted in section.targets.items()
    }


def _settings(name: str, section: Section | None) -> dict[str, str]:
    if section is None:
        return {}
    fields: dict[str, Any] = msgspec.to_builtins(section)
    return {f"{name}.{field}": str(value) for field, value in fields.items() if field != "targets"}


def _identity(manifest: Manifest) -> dict[str, str]:
    if manifest.source is None:
        return {}
    return {"source": f"{manifest.source.model_type} {manifest.source.inventory_sha256[:12]}"}


def _compare(first: dict[str, str], second: dict[str, str]) -> list[Difference]:
    names = dict.fromkeys([*first, *second])
    return [
        Difference(name, first.get(name), second.get(name))
        for name in names
        if first.get(name) != second.get(name)
    ]
