"""intarsia bench decode and bench prefill: steps and prompts on a GPU against their floors."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import tyro

from intarsia.cli.options import Measurement
from intarsia.cli.output import emit_json, gigabytes, note
from intarsia.cli.progress import terminal_progress
from intarsia.cli.tables import show_table
from intarsia.core.words import counted
from intarsia.evidence.speed.steps.settings import DecodeSettings, PrefillSettings

if TYPE_CHECKING:
    from intarsia.evidence.speed.steps.breakdown import Share
    from intarsia.evidence.speed.steps.run import StepsRun

MaybePath = Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[PATH]")]
SHOWN_OPERATIONS = 24
STEP_COLUMNS = (
    "streams",
    "ms a step",
    "floor, ms",
    "floor's share",
    "tokens/s",
    "experts a layer",
    "kernels a layer",
    "boundaries, ms",
    "GPU busy",
    "memory, planned and peak",
)
DRAFT_COLUMNS = (
    "streams",
    "guesses",
    "verifying, ms",
    "guessing, ms",
    "floor of both, ms",
    "break-even, tokens a step and stream",
)


@dataclass(frozen=True, kw_only=True)
class BenchDecode(Measurement, DecodeSettings):
    """Time steps of streams that write: floor, launches, cost of guessing, and where the time goes."""

    path: MaybePath = None
    """Folder of a checkpoint, or `demo`; or none, with --synthetic."""

    def run(self) -> int:
        self.open_report()
        from intarsia.evidence.speed.steps.run import measure_decode

        return _tell(measure_decode(self, self.path, progress=terminal_progress()), self)


@dataclass(frozen=True, kw_only=True)
class BenchPrefill(Measurement, PrefillSettings):
    """Time prompts: operations a second against what the device holds, and where the time goes."""

    path: MaybePath = None
    """Folder of a checkpoint, or `demo`; or none, with --synthetic."""

    def run(self) -> int:
        self.open_report()
        from intarsia.evidence.speed.steps.run import measure_prefill

        return _tell(measure_prefill(self, self.path, progress=terminal_progress()), self)


def _tell(run: "StepsRun", left: Measurement) -> int:
    from intarsia.evidence.receipts import steps_receipt

    if left.json:
        emit_json(run.as_dict())
    else:
        show(run)
    left.keep(partial(steps_receipt, run), f"{run.kind}-{run.label}")
    return 0


def show(run: "StepsRun") -> None:
    """Results, then the operations of each."""
    rates = run.rates
    note(
        f"{run.label}; the device streams {rates.bytes_a_second / 1e12:.2f} TB/s, multiplies at "
        f"{rates.operations_a_second / 1e12:.0f} TFLOP/s, an empty kernel takes "
        f"{rates.empty_kernel * 1e6:.2f} us"
    )
    _show_decode(run)
    _show_prompts(run)
    for left_out in run.not_run:
        note(f"note: {left_out}")


def _show_decode(run: "StepsRun") -> None:
    if not run.decode:
        return
    rows = [
        (
            one.streams,
            f"{one.seconds * 1e3:.3f}",
            f"{one.floor_seconds * 1e3:.3f}",
            f"{one.ratio:.1%}",
            f"{one.streams / one.seconds:.1f}",
            f"{one.experts:.1f}",
            f"{one.kernels_a_layer:.1f}",
            f"{one.boundary_seconds * 1e3:.3f}",
            f"{one.busy_seconds / max(one.device_seconds, 1e-12):.1%}",
            f"{gigabytes(one.planned_bytes)}, {gigabytes(one.peak_bytes)}",
        )
        for one in run.decode
    ]
    show_table("steps of one row a stream", STEP_COLUMNS, rows)
    drafted = [
        (
            one.streams,
            one.drafting.drafts,
            f"{one.drafting.verify_seconds * 1e3:.3f}",
            f"{one.drafting.chain_seconds * 1e3:.3f}",
            f"{one.drafting.floor_seconds * 1e3:.3f}",
            f"{one.drafting.break_even:.2f}",
        )
        for one in run.decode
        if one.drafting is not None
    ]
    if drafted:
        show_table("steps that verify guesses", DRAFT_COLUMNS, drafted)
    for one in run.decode:
        if one.eager_because:
            note(f"{counted(one.streams, 'stream')} ran eagerly: {one.eager_because}")
        _show_operations(f"a step of {counted(one.streams, 'stream')}", one.operations)


def _show_prompts(run: "StepsRun") -> None:
    if not run.prompts:
        return
    rows = [
        (
            f"{one.tokens:,}",
            f"{one.piece:,}",
            f"{one.seconds * 1e3:.1f}",
            f"{one.tokens / one.seconds:,.0f}",
            f"{one.rate / 1e12:.0f}",
            f"{one.share:.1%}",
        )
        for one in run.prompts
    ]
    columns = ("tokens", "rows at once", "ms", "tokens/s", "TFLOP/s", "of the device's")
    show_table("prompts", columns, rows)
    for one in run.prompts:
        _show_operations(f"the first two pieces of {one.tokens:,} tokens", one.operations)


def _show_operations(title: str, operations: Iterable["Share"]) -> None:
    rows = [
        (share.operation, share.calls, share.kernels, f"{share.seconds * 1e6:.1f}") for share in operations
    ]
    if rows:
        show_table(title, ("operation", "calls", "kernels", "us"), rows[:SHOWN_OPERATIONS])
