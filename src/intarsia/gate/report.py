"""What the gate found: every weight, the kinds of cut that were compared, and the faults that were seen."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from intarsia.gate.compare import Cell, Finding
from intarsia.gate.outputs import OutputCheck


@dataclass(slots=True)
class Coverage:
    """How many weights of each kind of cut exist and were compared, for one number of ranks."""

    exist: dict[Cell, int] = field(default_factory=dict)
    compared: dict[Cell, int] = field(default_factory=dict)

    @property
    def empty(self) -> list[Cell]:
        """Kinds of cut that exist and of which none was compared."""
        return [cell for cell in self.exist if not self.compared.get(cell)]


@dataclass(frozen=True, slots=True)
class GateReport:
    """Everything a run of the gate found.

    `filtered` says that only some weights were asked for. `unread` names tensors of the files that are in no
    weight that was compared (the vision tower is not loaded, and not meant); none may be, unless filtered.
    """

    path: str
    findings: Sequence[Finding]
    outputs: Sequence[OutputCheck]
    coverage: dict[int, Coverage]
    seen: dict[str, int]
    missed: dict[str, list[str]]
    filtered: bool
    unread: tuple[str, ...] = ()

    @property
    def differing(self) -> list[Finding]:
        """Weights with differences."""
        return [finding for finding in self.findings if finding.differences]

    @property
    def ok(self) -> bool:
        """True when everything is as it should be and nothing that exists was left out."""
        empty = any(coverage.empty for coverage in self.coverage.values()) and not self.filtered
        outputs = any(not check.ok for check in self.outputs)
        return not (self.differing or self.missed or empty or outputs or self.unread)

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {
            "checkpoint": self.path,
            "ok": self.ok,
            "weights": [_finding(finding) for finding in self.findings],
            "outputs": [
                {
                    "name": check.name,
                    "rank": check.rank,
                    "ranks": check.ranks,
                    "share_of_bound": check.share_of_bound,
                }
                for check in self.outputs
            ],
            "coverage": [
                {
                    "ranks": ranks,
                    "format": cell.form,
                    "axis": cell.axis,
                    "aligned": cell.aligned,
                    "exist": count,
                    "compared": coverage.compared.get(cell, 0),
                }
                for ranks, coverage in self.coverage.items()
                for cell, count in coverage.exist.items()
            ],
            "unread": list(self.unread),
            "mutations": {
                "seen": dict(self.seen),
                "missed": {name: list(at) for name, at in self.missed.items()},
            },
        }


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "name": finding.name,
        "rank": finding.rank,
        "ranks": finding.ranks,
        "format": finding.cell.form,
        "axis": finding.cell.axis,
        "aligned": finding.cell.aligned,
        "share": [finding.part.start, finding.part.stop] if finding.part.axis is not None else None,
        "origin": list(finding.origin),
        "bytes": finding.nbytes,
        "differences": [
            {"what": item.what, "found": item.found, "expected": item.expected, "offset": item.offset}
            for item in finding.differences
        ],
    }
