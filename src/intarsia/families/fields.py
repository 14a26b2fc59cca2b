"""Typed access to a checkpoint's `config.json` that collects what is wrong instead of stopping at it."""

from collections.abc import Mapping, Sequence
from typing import Any

from intarsia.core.errors import Violation

_MISSING = object()


class Fields:
    """One section of a config; every failed look-up becomes a Violation in the shared list `violations`.

    A getter that failed returns a harmless value of the right type, so that the reader goes on and finds the
    other problems; the caller must raise before using the result when `violations` is not empty.
    """

    def __init__(self, values: Mapping[str, Any], where: str, violations: list[Violation]) -> None:
        self.values = values
        self.where = where
        self.violations = violations

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def refuse(self, key: str, found: object, expected: str, *, rule: str = "config-value") -> None:
        """Record that `key` holds something the network does not implement."""
        text = "nothing" if found is _MISSING else repr(found)[:120]
        self.violations.append(Violation(rule, f"{self.where}.{key}", text, expected))

    def integer(
        self, key: str, *, minimum: int = 1, maximum: int = 2**31 - 1, default: int | None = None
    ) -> int:
        """An integer within bounds; a missing key is a violation unless `default` is given."""
        value = self.values.get(key, _MISSING if default is None else default)
        if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= maximum:
            return value
        self.refuse(key, value, f"an integer from {minimum} to {maximum}")
        return minimum

    def number(self, key: str, *, positive: bool = True) -> float:
        """A finite number, above zero unless `positive` is false (then below zero)."""
        value = self.values.get(key, _MISSING)
        # The bounds keep NaN, infinities and integers too large for a float out.
        if _is_number(value) and 1e-30 < (value if positive else -value) < 1e30:
            return float(value)
        self.refuse(key, value, f"a finite number {'above' if positive else 'below'} 0")
        return 1.0 if positive else -1.0

    def strings(self, key: str, allowed: Mapping[str, str], length: int) -> tuple[str, ...] | None:
        """The values of a per-layer list, each translated by `allowed`; None when the key is absent."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != length:
            size = f"{len(value)} entries" if isinstance(value, Sequence) else value
            self.refuse(key, size, f"a list of {length} entries")
            return None
        for index, item in enumerate(value):
            if not isinstance(item, str) or item not in allowed:
                self.refuse(f"{key}[{index}]", item, "one of " + ", ".join(sorted(allowed)))
                return None
        return tuple(allowed[item] for item in value)

    def fixed(self, key: str, expected: object, *, required: bool = False) -> None:
        """`key`, where present, must have the one value that is implemented."""
        value = self.values.get(key, _MISSING)
        if value is _MISSING and not required:
            return
        # 0 is not False and 1 is not True here.
        same_kind = type(value) is type(expected) or (_is_number(value) and _is_number(expected))
        if not same_kind or value != expected:
            self.refuse(key, value, repr(expected))

    def section(self, key: str) -> "Fields | None":
        """A nested object; None when absent, a violation when it is something else."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            self.refuse(key, value, "an object")
            return None
        return Fields(value, f"{self.where}.{key}", self.violations)

    def token_ids(self, key: str, vocab_size: int) -> tuple[int, ...]:
        """One token id or a list of them, each below the vocabulary size; absent or null gives ()."""
        value = self.values.get(key)
        ids = value if isinstance(value, list) else [] if value is None else [value]
        for token in ids:
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < vocab_size:
                self.refuse(key, value, f"token ids below vocab_size {vocab_size}")
                return ()
        return tuple(ids)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
