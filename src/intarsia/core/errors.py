"""The root of every error Intarsia raises on purpose.

Each layer defines its own kinds (one exception type a failure kind) in its `errors.py`, all below
`IntarsiaError`. Whatever else escapes is a bug.
"""

from collections.abc import Sequence
from dataclasses import dataclass


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


class ViolationsError(IntarsiaError):
    """Every violation a check found, together."""

    def __init__(self, where: str, violations: Sequence[Violation]) -> None:
        self.violations = tuple(violations)
        count = len(self.violations)
        super().__init__(where, found=f"{count} violation{'s' if count != 1 else ''}")

    def __str__(self) -> str:
        return "\n  ".join([super().__str__(), *map(str, self.violations)])
