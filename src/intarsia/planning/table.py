"""Every weight's share on every rank, weights that are cut alike together."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from intarsia.core.errors import Violation
from intarsia.families.glm5_next.split import REPLICATE, SplitRule
from intarsia.planning.items import Item
from intarsia.planning.shares import Held, Parts, held

_NUMBER = re.compile(r"\.\d+(?=\.|$)")


@dataclass(frozen=True, slots=True)
class SharedWeights:
    """Weights of one shape and format that are cut alike, `pattern` their names with numbers left out.

    `held` and `nbytes` are a single weight's on each rank. `reason` is what is cut ("head", "width",
    "vocabulary"), in whole `unit`s along `axis`; "replicate", axis None: every rank has all of it. `refused`
    says why such weights cannot be cut for so many ranks; then no rank holds any, and no total has them.
    """

    pattern: str
    names: tuple[str, ...]
    section: str
    format: str
    shape: tuple[int, ...]
    reason: str
    axis: int | None
    unit: int
    held: tuple[Held, ...]
    nbytes: tuple[int, ...]
    refused: str | None = None

    @property
    def equal(self) -> bool:
        """True when all ranks hold as much."""
        return len(set(self.nbytes)) == 1 and len({len(part.entries) for part in self.held}) == 1

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "pattern": self.pattern,
            "weights": list(self.names),
            "section": self.section,
            "format": self.format,
            "shape": list(self.shape),
            "reason": self.reason,
            "axis": None if self.axis is None else "columns" if self.axis else "rows",
            "unit": self.unit,
            "equal": self.equal,
            "refused": self.refused,
            "ranks": [
                {
                    "first": part.entries.start,
                    "entries": len(part.entries),
                    "origin": list(part.origin),
                    "tensors": {suffix: list(shape) for suffix, shape in part.tensors},
                    "bytes": nbytes,
                }
                for part, nbytes in zip(self.held, self.nbytes, strict=True)
            ],
        }


class ShareTable:
    """Collects weights with their shares."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._names: dict[tuple[Any, ...], list[str]] = {}

    def add(self, item: Item, rule: SplitRule | None, parts: tuple[Parts, ...] | Violation) -> None:
        """One weight, and the bytes of its shares, or why there are none."""
        key = (_NUMBER.sub(".*", item.name), item.section, item.kind, item.form, rule or REPLICATE, parts)
        self._names.setdefault(key, []).append(item.name)

    def rows(self) -> Iterator[SharedWeights]:
        """In the order in which the weights were added."""
        for (pattern, section, kind, form, rule, parts), names in self._names.items():
            refused = None
            if isinstance(parts, Violation):
                refused = f"{parts.found}; expected {parts.expected}"
            yield SharedWeights(
                pattern,
                tuple(names),
                section,
                kind,
                form.shape,
                rule.reason,
                rule.axis,
                rule.unit,
                () if refused else held(form, rule, self._ranks),
                () if refused else tuple(part.total for part in parts),
                refused,
            )
