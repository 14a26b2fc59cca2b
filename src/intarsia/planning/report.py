"""The result of planning, and its form as a JSON document."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from intarsia.core.errors import Violation
from intarsia.planning.caches import CacheBytes
from intarsia.planning.shares import Parts
from intarsia.planning.table import SharedWeights
from intarsia.planning.wire import Wire

Table = Mapping[tuple[str, str], Parts]


@dataclass(frozen=True, slots=True)
class RankPlan:
    """Bytes on one rank. `table` has a row for each section (main, draft) and format.

    `working` is what loading needs beside weights at its worst; `peak` the highest point of the load, reached
    at the weight `peak_at`. `prompts` is what a piece of a prompt works in on a GPU, at most; nothing on a
    CPU.
    """

    rank: int
    table: Table
    caches: CacheBytes
    scratch: int
    working: int
    peak: int
    peak_at: str
    prompts: int = 0

    @property
    def weights(self) -> int:
        """Bytes of all weights once loaded."""
        return sum(parts.total for parts in self.table.values())

    @property
    def total(self) -> int:
        """Weights, scratch, caches and what a prompt works in."""
        return self.weights + self.scratch + self.prompts + self.caches.total

    def part(self, section: str, kind: str) -> Parts:
        """The row of one section and format; zeros when there is none."""
        return self.table.get((section, kind), Parts(0, 0, 0))


@dataclass(frozen=True, slots=True)
class Cut:
    """A way in which weights are cut among ranks: `sizes` entries of the axis on each rank, in whole `unit`s.

    `reason` is what is cut ("head", "width", "vocabulary"), `weights` how many weights are cut so.
    """

    reason: str
    axis: int
    unit: int
    sizes: tuple[int, ...]
    weights: int

    @property
    def equal(self) -> bool:
        """True when all ranks hold as much."""
        return len(set(self.sizes)) == 1


@dataclass(frozen=True, slots=True)
class Plan:
    """What a load takes on every rank. `violations` are all reasons why it cannot be done.

    `targets` counts converted matrices a section, experts apart; `modules` counts them fused as a runtime
    multiplies them. `exported` is bytes by format of the converted checkpoint, before exceptions of
    compressed scales. `window` is the largest context that fits, None without a device's memory.
    """

    path: str
    model_type: str
    manifest_sha256: str | None
    ranks: tuple[RankPlan, ...]
    targets: Mapping[str, int]
    modules: Mapping[str, int]
    exported: Mapping[str, int]
    exported_tensors: int
    source_bytes: int
    context: int | None
    streams: int
    native_window: int | None
    window: int | None
    device_memory: int | None
    reserve: int | None
    unused: tuple[str, ...]
    violations: tuple[Violation, ...]
    cuts: tuple[Cut, ...] = ()
    shares: tuple[SharedWeights, ...] = ()
    """Every weight that is loaded, those that are cut alike together."""
    wire: Wire | None = None
    """What ranks send each other; None for one rank, and where nothing says how to cut."""

    @property
    def ok(self) -> bool:
        """True when nothing stands against the load."""
        return not self.violations

    @property
    def exported_bytes(self) -> int:
        """Bytes of all tensors of the converted checkpoint."""
        return sum(self.exported.values())

    def as_dict(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return {
            "checkpoint": self.path,
            "model_type": self.model_type,
            "manifest_sha256": self.manifest_sha256,
            "targets": dict(self.targets),
            "modules": dict(self.modules),
            "source_bytes": self.source_bytes,
            "exported_bytes": self.exported_bytes,
            "exported": dict(self.exported),
            "exported_tensors": self.exported_tensors,
            "context": self.context,
            "streams": self.streams,
            "native_window": self.native_window,
            "window": self.window,
            "device_memory": self.device_memory,
            "reserve": self.reserve,
            "unused": list(self.unused),
            "ranks": [_rank(plan) for plan in self.ranks],
            "cuts": [
                {
                    "reason": cut.reason,
                    "axis": "columns" if cut.axis else "rows",
                    "unit": cut.unit,
                    "sizes": list(cut.sizes),
                    "weights": cut.weights,
                }
                for cut in self.cuts
            ],
            "shares": [row.as_dict() for row in self.shares],
            "wire": self.wire.as_dict() if self.wire is not None else None,
            "violations": [
                {name: getattr(item, name) for name in ("rule", "where", "found", "expected", "action")}
                for item in self.violations
            ],
        }


def _rank(plan: RankPlan) -> dict[str, Any]:
    return {
        "rank": plan.rank,
        "weights": plan.weights,
        "scratch": plan.scratch,
        "prompts": plan.prompts,
        "caches": {"paged": plan.caches.paged, "fixed": plan.caches.fixed},
        "total": plan.total,
        "working": plan.working,
        "peak": plan.peak,
        "peak_at": plan.peak_at,
        "formats": [
            {"section": section, "format": kind, **parts._asdict(), "total": parts.total}
            for (section, kind), parts in plan.table.items()
        ],
    }
