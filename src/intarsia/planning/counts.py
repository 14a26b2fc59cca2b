"""How much a selection converts."""

from collections.abc import Mapping

from intarsia.selection.resolve import Selection


def count_targets(selection: Selection | None) -> Mapping[str, int]:
    """Matrices a section, experts apart."""
    counts: dict[str, int] = {}
    for target in selection.targets.values() if selection is not None else ():
        expert = ".experts." in target.module
        key = f"{target.section} expert matrices" if expert else target.section
        counts[key] = counts.get(key, 0) + 1
    return counts


def count_modules(selection: Selection | None) -> Mapping[str, int]:
    """Modules as a runtime fuses them, a section, experts apart."""
    if selection is None:
        return {}
    counts = {}
    for section in selection.manifest.sections():
        counts[section] = len(selection.fused_modules(section))
        counts[f"{section} experts"] = len(selection.fused_modules(section, experts=True))
    return {name: count for name, count in counts.items() if count}
