"""Two speed runs held against each other, if nothing but their subject differs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from intarsia.core.errors import Violation
from intarsia.evidence.bootstrap import interval_of_mean
from intarsia.evidence.errors import IncomparableError

Run = Mapping[str, Any]
FEWEST_PAIRS = 3
"""Of two pairs every interval is just both of them."""


@dataclass(frozen=True, slots=True)
class CellComparison:
    """One cell: tokens a second of both (medians), and the change of speed from A to B with its interval.

    Changes are fractions: 0.02 is 2 % faster. `drift` is the change of A from its first sample to its last.
    """

    cell: str
    pairs: int
    a_tokens_per_second: float
    b_tokens_per_second: float
    change: float
    interval: tuple[float, float]
    drift: float

    @property
    def verdict(self) -> str:
        """What the interval and the drift allow to say."""
        low, high = self.interval
        if self.pairs < FEWEST_PAIRS:
            return "too few pairs to say"
        if low <= 0 <= high:
            return "no difference shown"
        if abs(self.change) <= abs(self.drift):
            return "within the drift of A"
        return "faster" if self.change > 0 else "slower"


@dataclass(frozen=True, slots=True)
class Drafting:
    """What drafts gave in one decode cell. `break_even` is how many tokens a step must give to pay for what
    drafting adds to it; `tokens_per_step` counts all streams."""

    cell: str
    drafted: int
    accepted: int
    tokens_per_step: float
    break_even: float

    @property
    def acceptance(self) -> float:
        """Accepted of drafted tokens."""
        return self.accepted / self.drafted if self.drafted else 0.0


def compare_runs(a: Run, b: Run, seed: int = 0) -> tuple[CellComparison, ...]:
    """Compare cell by cell; samples of one round are a pair.

    Within one session A's time of a round is the geometric mean of the samples before and after B's. Raises
    IncomparableError with every differing setting, machine field, text, cache state and sample count.
    """
    violations = differences(a, b)
    if violations:
        raise IncomparableError(violations)
    bracketed = a["session"] == b["session"]
    ours, theirs = _by_cell(a), _by_cell(b)
    return tuple(_cell(cell, ours[cell], theirs[cell], bracketed, seed) for cell in ours)


def differences(a: Run, b: Run) -> list[Violation]:
    """All that must be equal and is not."""
    found = []
    for part in ("settings", "machine"):
        ours, theirs = _flat(part, a[part]), _flat(part, b[part])
        for name in ours.keys() | theirs.keys():
            if ours.get(name) != theirs.get(name):
                found.append(_differs(name, theirs.get(name, "nothing"), ours.get(name, "nothing")))
    if a["text_sha256"] != b["text_sha256"]:
        found.append(_differs("text_sha256", b["text_sha256"], a["text_sha256"]))
    ours_cells, theirs_cells = _by_cell(a), _by_cell(b)
    if ours_cells.keys() != theirs_cells.keys():
        found.append(_differs("cells", ", ".join(theirs_cells), ", ".join(ours_cells)))
    for cell in ours_cells.keys() & theirs_cells.keys():
        for name in ("cached_tokens", "file_cache"):
            ours_seen, theirs_seen = (
                sorted({str(sample[name]) for sample in side[cell]}) for side in (ours_cells, theirs_cells)
            )
            if ours_seen != theirs_seen:
                found.append(_differs(f"{cell}: {name}", ", ".join(theirs_seen), ", ".join(ours_seen)))
        if not {sample["round"] for sample in ours_cells[cell]} & {s["round"] for s in theirs_cells[cell]}:
            found.append(_differs(f"{cell}: rounds", "none in common", "samples of the same rounds"))
    return sorted(found, key=lambda violation: violation.where)


def drafting(run: Run) -> tuple[Drafting, ...]:
    """Acceptance and break-even of every drafted cell, against the plain cell of as many streams."""
    cells = _by_cell(run)
    found = []
    for cell, samples in cells.items():
        plain = cells.get(cell.rpartition(", ")[0])
        if not cell.endswith(" drafts") or plain is None:
            continue
        step, plain_step = (
            sum(sample["seconds"] for sample in side) / sum(sample["steps"] for sample in side)
            for side in (samples, plain)
        )
        steps, plain_steps = (sum(sample["steps"] for sample in side) for side in (samples, plain))
        plain_tokens = sum(sample["tokens"] for sample in plain) / plain_steps
        found.append(
            Drafting(
                cell,
                sum(sample["drafted"] for sample in samples),
                sum(sample["accepted"] for sample in samples),
                sum(sample["tokens"] for sample in samples) / steps,
                plain_tokens * step / plain_step,
            )
        )
    return tuple(found)


def _cell(
    cell: str, ours: Sequence[Run], theirs: Sequence[Run], bracketed: bool, seed: int
) -> CellComparison:
    a = {sample["round"]: sample["seconds"] / sample["tokens"] for sample in ours}
    b = {sample["round"]: sample["seconds"] / sample["tokens"] for sample in theirs}
    logs = []
    for number in sorted(a.keys() & b.keys()):
        around = [a[number]] + ([a[number + 1]] if bracketed and number + 1 in a else [])
        logs.append(sum(map(math.log, around)) / len(around) - math.log(b[number]))
    low, high = interval_of_mean(logs, seed)
    return CellComparison(
        cell,
        len(logs),
        1 / median(a.values()),
        1 / median(b.values()),
        math.expm1(sum(logs) / len(logs)),
        (math.expm1(low), math.expm1(high)),
        a[min(a)] / a[max(a)] - 1,
    )


def _by_cell(run: Run) -> dict[str, list[Run]]:
    """Samples that count, by cell."""
    found: dict[str, list[Run]] = {}
    for sample in run["samples"]:
        if not sample["warm_up"]:
            found.setdefault(sample["cell"], []).append(sample)
    return found


def _flat(prefix: str, value: object) -> dict[str, object]:
    if not isinstance(value, Mapping):
        return {prefix: value}
    return {
        name: item for key, part in value.items() for name, item in _flat(f"{prefix}.{key}", part).items()
    }


def _differs(field: str, found: object, expected: object) -> Violation:
    action = "repeat one of the runs as the other was made"
    return Violation("incomparable", field, str(found), f"{expected}, as in A", action)
