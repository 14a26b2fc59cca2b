"""intarsia check: the engine's own checks on a checkpoint."""

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from intarsia.cli.options import CheckpointPath
from intarsia.cli.output import emit_json, printable
from intarsia.cli.progress import terminal_progress
from intarsia.cli.ranks import start_ranks
from intarsia.cli.tables import show_table
from intarsia.core.config import CacheType, EngineSettings, LoadSettings, part_of

if TYPE_CHECKING:
    from intarsia.evidence.checks import CheckReport

MOST_FAILURES = 20


@dataclass(frozen=True, kw_only=True)
class Check(LoadSettings):
    """Run an engine check on a checkpoint: every stream's tokens must be those it gets alone.

    lanes-cover drives every path once: each window width and kept part of it, stream counts, guesses and
    copies, chunk sizes, kept states, cancellations, too little room. lanes-concurrent serves staggered
    requests in threads. shared compares bits of shared steps. With --tp they run over several ranks, each
    reply being compared with the one that as many ranks give it alone. Exit code 1 when something differs or
    a path was not taken.
    """

    check: Annotated[Literal["lanes-cover", "lanes-concurrent", "shared"], tyro.conf.Positional]
    """Which check."""
    path: CheckpointPath
    """Folder of a checkpoint, or `demo`."""
    kv_cache_dtype: CacheType = "auto"
    """How cached latents are stored: auto in the type of activations, bfloat16, or fp8."""
    tp: int = 1
    """Ranks the model is spread over; on one host they are started together."""
    rank: int | None = None
    """Which of the ranks this is, where each is started by itself; else they are started here."""
    master: str = EngineSettings.master
    """Address at which the ranks meet: that of rank 0."""
    master_port: int = EngineSettings.master_port
    """Port at which the ranks meet."""
    rank_timeout: float = EngineSettings.rank_timeout
    """Seconds a rank waits for another one before it counts as lost."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        settings = part_of(self, EngineSettings)
        code = start_ranks(settings)
        if code is not None:
            return code
        from intarsia import api
        from intarsia.engine.devices import usable_device
        from intarsia.engine.joining import join, rank_device
        from intarsia.engine.threads import use_threads
        from intarsia.evidence.checks import CHECKS, run_check
        from intarsia.loading.weights import prepared

        plan = prepared(self.path)
        use_threads(self.threads, plan.config.hidden_size)
        place = rank_device(settings, usable_device(self.device))
        group = join(settings, plan, place)
        progress = terminal_progress()
        model = api.load(
            plan, place, self.dtype, kv_cache_dtype=self.kv_cache_dtype, group=group, progress=progress
        )
        report = run_check(CHECKS, self.check, model, group, progress)
        if self.json:
            empty = [asdict(cell) for cell in report.empty]
            emit_json({**asdict(report), "empty": empty, "passed": report.passed})
        else:
            show(report)
        return 0 if report.passed else 1


def show(report: "CheckReport") -> None:
    """The coverage table, what differed, then one line that sums up."""
    groups = defaultdict(list)
    for cell in report.cells:
        groups[cell.group].append(cell)
    rows = [
        (
            group,
            len(cells),
            sum(cell.count for cell in cells),
            ", ".join(c.name for c in cells if not c.count),
        )
        for group, cells in groups.items()
    ]
    show_table(report.name, ("paths", "cells", "taken", "never taken"), rows)
    for failure in report.failures[:MOST_FAILURES]:
        print(printable(failure))
    if len(report.failures) > MOST_FAILURES:
        print(f"and {len(report.failures) - MOST_FAILURES} more")
    print(
        f"{report.compared:,} compared, {len(report.failures)} differ, {len(report.empty)} of "
        f"{len(report.cells)} cells empty, {report.seconds:.1f} s"
    )
    print("passed" if report.passed else "failed")
