"""Collecting violations without letting a hostile file fill the memory with them."""

from collections import Counter

from intarsia.core.errors import Violation

MAX_PER_RULE = 1000


class Findings:
    """Violations in the order found; beyond `limit` of one rule only their number is kept."""

    def __init__(self, limit: int = MAX_PER_RULE) -> None:
        self._limit = limit
        self._kept: list[Violation] = []
        self._counts: Counter[str] = Counter()

    def add(self, rule: str, where: str, found: str = "", expected: str = "", action: str = "") -> None:
        """Note one violation."""
        self._counts[rule] += 1
        if self._counts[rule] <= self._limit:
            self._kept.append(Violation(rule, where, found, expected, action))

    def extend(self, violations: "tuple[Violation, ...]") -> None:
        """Note violations found elsewhere."""
        for item in violations:
            self.add(item.rule, item.where, item.found, item.expected, item.action)

    def __len__(self) -> int:
        return sum(self._counts.values())

    def has(self, rule: str) -> bool:
        """Whether the rule was broken at least once."""
        return self._counts[rule] > 0

    def all(self) -> tuple[Violation, ...]:
        """The violations, and for each rule that broke the limit one line with the number left out."""
        rest = [
            Violation(rule, "and more", found=f"{count - self._limit:,} further violations of this rule")
            for rule, count in self._counts.items()
            if count > self._limit
        ]
        return (*self._kept, *rest)
