"""intarsia bench kernels: every operation on a GPU against its floor, and peers beside."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from intarsia.cli.options import Measurement
from intarsia.cli.output import INTERRUPTED, emit_json, note, stoppable
from intarsia.cli.progress import terminal_progress
from intarsia.cli.tables import show_table
from intarsia.core.words import counted
from intarsia.evidence.kernels.settings import KernelsSettings

if TYPE_CHECKING:
    from intarsia.evidence.kernels.run import KernelsRun
    from intarsia.evidence.kernels.table import Row

COLUMNS = (
    "operation",
    "case",
    "rows",
    "us",
    "nine of ten, us",
    "floor, us",
    "to the floor",
    "aim, us",
    "beside, us",
)
AIM_COLUMNS = ("work", "rows", "us", "aim, us", "to the aim", "met", "the aim is")


@dataclass(frozen=True, kw_only=True)
class BenchKernels(Measurement, KernelsSettings):
    """Time every operation of GLM-5.3-Flash on a GPU, one by one: its floor, its aim, and peers beside."""

    def run(self) -> int:
        self.open_report()
        from intarsia.evidence.kernels.run import measure_kernels
        from intarsia.evidence.receipts import kernels_receipt

        with stoppable():
            run = measure_kernels(self, tell, progress=terminal_progress())
        if self.json:
            emit_json(run.as_dict())
        else:
            show(run)
        self.keep(partial(kernels_receipt, run), "kernels")
        if run.interrupted:
            return INTERRUPTED
        return 1 if run.failed else 0


def tell(row: "Row") -> None:
    """A row as soon as it is known, so that a run which is stopped has said something."""
    beside, spread = _beside(row), _spread(row)
    spread = f" ({spread})" if spread else ""
    case = f"{row.operation}: {row.case}, {counted(row.rows, 'row')}"
    figures = f"{row.us:.1f} us{spread}, floor {row.floor_us:.1f}"
    note(f"{case}: {figures}" + (f", {beside}" if beside else ""))


def show(run: "KernelsRun") -> None:
    """The table, then the aims of which there are figures."""
    from intarsia.evidence.kernels.aims import DEVICE, reached

    name = run.machine.get("gpu", {}).get("name", "")
    note(
        f"{name}: streams {run.rates.bytes_a_second / 1e12:.2f} TB/s, multiplies at "
        f"{run.rates.operations_a_second / 1e12:.0f} TFLOP/s"
    )
    aims = {(line.operation, line.case, line.rows): line for line in reached(run.rows) if not line.of}
    rows = [
        (
            row.operation,
            row.case,
            f"{row.rows:,}",
            f"{row.us:.1f}",
            _spread(row),
            f"{row.floor_us:.1f}",
            f"{row.ratio:.2f}",
            f"{aims[key].aim_us:.1f}" if (key := (row.operation, row.case, row.rows)) in aims else "",
            _beside(row),
        )
        for row in run.rows
    ]
    show_table("operations", COLUMNS, rows)
    note(_states(run.rows))
    note(_times(run))
    lines = [
        (
            line.work,
            f"{line.rows:,}",
            f"{line.us:.1f}",
            f"{line.aim_us:.1f}",
            f"{line.us / line.aim_us:.2f}",
            "yes" if line.met else "no",
            line.aim,
        )
        for line in reached(run.rows)
    ]
    if lines:
        show_table(f"aims on one {DEVICE}", AIM_COLUMNS, lines)
        if DEVICE not in name:
            note(f"note: the aims are of one {DEVICE}, and this is {name or 'unknown'}")
    for left_out in run.not_run:
        note(f"note: {left_out}")


def _spread(row: "Row") -> str:
    """What nine of ten repeats took."""
    if row.low_us is None or row.high_us is None:
        return ""
    return f"{row.low_us:.1f} to {row.high_us:.1f}"


def _states(rows: Sequence["Row"]) -> str:
    """In which the device was after the figures."""
    told = []
    for values, unit in (
        ([row.clock_mhz for row in rows if row.clock_mhz is not None], "MHz"),
        ([row.temperature_c for row in rows if row.temperature_c is not None], "degrees"),
    ):
        if values:
            told.append(f"{min(values)} to {max(values)} {unit}")
    return f"after a figure the device had {', '.join(told) or 'a clock that it does not tell'}"


def _times(run: "KernelsRun") -> str:
    """Where the run's time went."""
    ahead = run.ahead
    beside = f" ({ahead.parts} parts in {ahead.processes} processes)" if ahead.processes else ""
    told = [f"{name} {seconds:.1f} s" for name, seconds in run.seconds.items()]
    told[:1] = [first + beside for first in told[:1]]
    left = "".join(f"; {part} was not compiled ahead: {reason}" for part, reason in ahead.left.items())
    return f"time: {', '.join(told) or 'not known'}{left}"


def _beside(row: "Row") -> str:
    return ", ".join(f"{name} {us:.1f}" for name, us in row.beside.items())
