"""Routed experts of one layer: a set that must be complete and stored one way."""

from collections.abc import Mapping

from intarsia.checkpoint.findings import Findings
from intarsia.checkpoint.module import Module


def expert_sets(modules: Mapping[str, Module]) -> dict[str, dict[int, dict[str, Module]]]:
    """Container -> expert -> projection -> module."""
    sets: dict[str, dict[int, dict[str, Module]]] = {}
    for name, module in modules.items():
        container, inside, rest = name.partition(".experts.")
        number, _, projection = rest.partition(".")
        if inside and projection and number.isdecimal() and len(number) < 8:
            sets.setdefault(f"{container}.experts", {}).setdefault(int(number), {})[projection] = module
    return sets


def check_experts(modules: Mapping[str, Module], findings: Findings) -> None:
    """Every expert of a layer must have the same projections, in the same format and shapes."""
    for container, experts in expert_sets(modules).items():
        projections = sorted({projection for held in experts.values() for projection in held})
        _check_numbers(container, experts, findings)
        for expert, held in experts.items():
            for projection in projections:
                if projection not in held:
                    findings.add(
                        "expert-incomplete",
                        f"{container}.{expert}.{projection}",
                        "no such module",
                        f"it, as in the other experts of {container}",
                        "download the missing shard",
                    )
        _check_alike(container, experts, projections, findings)


def _check_numbers(container: str, experts: Mapping[int, object], findings: Findings) -> None:
    highest = max(experts)
    if len(experts) == highest + 1:
        return
    gaps = []
    for expert in range(min(highest, len(experts) + 16)):
        if expert not in experts:
            gaps.append(str(expert))
    findings.add(
        "expert-incomplete",
        container,
        f"{len(experts)} experts numbered up to {highest}, without {', '.join(gaps[:8])}",
        "experts numbered without a gap",
        "download the missing shard",
    )


def _check_alike(
    container: str,
    experts: Mapping[int, Mapping[str, Module]],
    projections: list[str],
    findings: Findings,
) -> None:
    """Compare with the most common storage, so that the odd ones are named and not the others."""
    kinds: dict[tuple[str | None, str | None], list[str]] = {}
    for held in experts.values():
        for module in held.values():
            kinds.setdefault((module.format, module.codec), []).append(module.name)
    if len(kinds) > 1:
        usual = max(kinds, key=lambda kind: len(kinds[kind]))
        for kind, names in kinds.items():
            if kind != usual:
                findings.add(
                    "mixed-experts",
                    names[0],
                    f"{len(names)} matrices of {container} in {_title(kind)}",
                    f"{_title(usual)}, as the other {len(kinds[usual])}",
                    "one recipe for all routed experts of a layer",
                )
    for projection in projections:
        shapes: dict[tuple[int, ...] | None, list[str]] = {}
        for held in experts.values():
            if projection in held:
                shapes.setdefault(held[projection].shape, []).append(held[projection].name)
        if len(shapes) > 1:
            usual_shape = max(shapes, key=lambda shape: len(shapes[shape]))
            for shape, names in shapes.items():
                if shape != usual_shape:
                    findings.add("expert-shape", names[0], f"shape {shape}", f"shape {usual_shape}")


def _title(kind: tuple[str | None, str | None]) -> str:
    return (kind[0] or "plain numbers") + (f" ({kind[1]})" if kind[1] else "")
