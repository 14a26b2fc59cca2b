"""The root of every error Intarsia raises on purpose.

Each layer defines its own kinds (one exception type a failure kind) in its `errors.py`, all below
`IntarsiaError`. Whatever else escapes is a bug.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

MANY = 5
"""Places with the same violation from which on they are not told one by one."""
SHOWN = 3
"""How many of them are named then."""


def describe(where: str, found: str, expected: str, action: str) -> str:
    """One sentence in the order every message follows: where, found, expected, what to do."""
    parts = [f"found {found}" if found else "", f"expected {expected}" if expected else "", action]
    return f"{where}: " + "; ".join(part for part in parts if part)


class IntarsiaError(Exception):
    """A refusal. `where` names the tensor, module, file or setting it is about."""

    def __init__(self, where: str, *, found: str = "", expected: str = "", action: str = "") -> None:
        self.where = where
        self.found = found
        self.expected = expected
        self.action = action
        super().__init__(describe(where, found, expected, action))


class UsageError(IntarsiaError):
    """A setting or argument that cannot be meant; the command line answers it with exit code 2."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule, found by a check that goes on to find the others.

    `rule` is a stable kebab-case name that tests and scripts may rely on, such as `missing-shard`.
    """

    rule: str
    where: str
    found: str = ""
    expected: str = ""
    action: str = ""

    def __str__(self) -> str:
        return f"[{self.rule}] " + describe(self.where, self.found, self.expected, self.action)


def told_once(violations: Sequence[Violation]) -> list[str]:
    """A line a violation; those that say the same of many places are one, with how many and some of them."""
    alike: dict[tuple[str, str, str], list[Violation]] = defaultdict(list)
    for violation in violations:
        alike[violation.rule, violation.expected, violation.action].append(violation)
    lines: list[str] = []
    for (rule, expected, action), several in alike.items():
        found = list(dict.fromkeys(violation.found for violation in several))
        if len(several) < MANY * len(found):
            lines += map(str, several)
            continue
        where = f"{len(several)} places, such as {_some([violation.where for violation in several])}"
        lines.append(f"[{rule}] {describe(where, _some(found), expected, action)}")
    return lines


def _some(words: Sequence[str]) -> str:
    return ", ".join(words[:SHOWN]) + (" and others" if len(words) > SHOWN else "")


class ViolationsError(IntarsiaError):
    """Every violation a check found, together."""

    def __init__(self, where: str, violations: Sequence[Violation]) -> None:
        self.violations = tuple(violations)
        count = len(self.violations)
        super().__init__(where, found=f"{count} violation{'s' if count != 1 else ''}")

    def __str__(self) -> str:
        return "\n  ".join([super().__str__(), *told_once(self.violations)])
