"""Finding modules by any of their names: the checkpoint's, a runtime's, or that of a fused module."""

import difflib
import fnmatch
import re
from collections.abc import Iterable, Mapping

from intarsia.families.groups import GroupRule, fused_groups
from intarsia.selection.source import Source

MAX_PATTERN = 256


def is_pattern(name: str) -> bool:
    """True for `re:` expressions and globs."""
    return name.startswith("re:") or any(mark in name for mark in "*?[")


class NameIndex:
    """All names of a source's modules under one table of fused groups."""

    def __init__(self, source: Source, rules: Iterable[GroupRule]) -> None:
        self._key = source.family.key
        self.groups = fused_groups(source.modules, rules)
        self._members: dict[str, tuple[str, ...]] = {self._key(name): (name,) for name in source.modules}
        for name, members in self.groups.items():
            self._members[self._key(name)] = members
        for name, sources in source.family.stacks.items():
            if all(module in source.modules for module in sources):
                self._members.setdefault(self._key(name), sources)
        self.modules: Mapping[str, object] = source.modules
        self.owner = {member: name for name, members in self.groups.items() for member in members}

    def lookup(self, name: str) -> tuple[str, ...]:
        """The modules an exact name stands for: one, the members of a fused module, or none."""
        if name in self.modules:
            return (name,)
        return self._members.get(self._key(name), ())

    def match(self, pattern: str) -> tuple[str, ...]:
        """The modules whose own or container's name a glob or `re:` expression matches as a whole.

        Raises re.error for a malformed expression, or one longer than 256 characters.
        """
        if len(pattern) > MAX_PATTERN:
            raise re.error(f"longer than {MAX_PATTERN} characters")
        expression = pattern[3:] if pattern.startswith("re:") else fnmatch.translate(pattern)
        fits = re.compile(expression).fullmatch
        found = [name for name in self.modules if fits(name)]
        for name, members in self.groups.items():
            if name.endswith(".experts") and fits(name):
                found.extend(members)
        return tuple(dict.fromkeys(found))

    def nearest(self, name: str, count: int = 3) -> list[str]:
        """Names most like one that was not found: those that differ in one component come first."""
        parts = self._key(name).split(".")
        pool = [key for key in self._members if _differ_in_one(key.split("."), parts)]
        pool = pool or [key for key in self._members if key.endswith(parts[-1])]
        near = difflib.get_close_matches(".".join(parts), pool[:2000], n=count, cutoff=0.5)
        return [self._members[key][0] if len(self._members[key]) == 1 else key for key in near]


def _differ_in_one(a: list[str], b: list[str]) -> bool:
    return len(a) == len(b) and sum(x != y for x, y in zip(a, b, strict=True)) <= 1
