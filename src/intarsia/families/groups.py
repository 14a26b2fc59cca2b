"""Fused groups: matrices that see the same input and that a runtime multiplies as one.

A group must have one number format, so a selection names all of its members or none. Groups are data: a rule
says which siblings of a module belong together.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_EXPERT = re.compile(r"(.+\.experts)\.\d+\.[^.]+")


@dataclass(frozen=True, slots=True)
class GroupRule:
    """Siblings `members` of one parent form the fused module `parent.fused` when all of them exist."""

    fused: str
    members: tuple[str, ...]


# Architectures without rules of their own: the two groups every llama-like network has.
LLAMA_LIKE = (
    GroupRule("qkv_proj", ("q_proj", "k_proj", "v_proj")),
    GroupRule("gate_up_proj", ("gate_proj", "up_proj")),
)


def container_of(module: str) -> str | None:
    """`X.experts` for a matrix of a routed expert, `X.experts.E.name`; None for anything else."""
    match = _EXPERT.fullmatch(module)
    return match[1] if match else None


def fused_groups(modules: Iterable[str], rules: Iterable[GroupRule]) -> dict[str, tuple[str, ...]]:
    """Fused module -> members, for every parent that has all members of a rule.

    All matrices of a layer's routed experts form one group, named by their container. The first rule that
    claims a module wins.
    """
    children: dict[str, dict[str, str]] = {}
    groups: dict[str, list[str]] = {}
    for module in modules:
        container = container_of(module)
        if container is not None:
            groups.setdefault(container, []).append(module)
            continue
        parent, _, last = module.rpartition(".")
        children.setdefault(parent, {})[last] = module
    result = {name: tuple(members) for name, members in groups.items()}
    rules = tuple(rules)
    for parent, named in children.items():
        for rule in rules:
            if all(member in named for member in rule.members):
                result[f"{parent}.{rule.fused}"] = tuple(named.pop(member) for member in rule.members)
    return result
