"""intarsia bench load and bench convert: seconds of a load, where they go, and its memory."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import tyro

from intarsia.cli.options import CheckpointPath, Measurement
from intarsia.cli.output import emit_json, note
from intarsia.cli.progress import terminal_progress
from intarsia.cli.tables import show_table
from intarsia.core.words import counted
from intarsia.evidence.loads.settings import PEAKS_ON_A_CPU, LoadsSettings

if TYPE_CHECKING:
    from intarsia.evidence.loads.run import LoadsRun


@dataclass(frozen=True, kw_only=True)
class BenchLoad(Measurement, LoadsSettings):
    """Time loading a checkpoint as stored: against reading its files and carrying them to the device."""

    path: CheckpointPath
    """Folder of a checkpoint, or `demo`."""

    def run(self) -> int:
        return _measure(self, self, [None], self.path)


@dataclass(frozen=True, kw_only=True)
class BenchConvert(Measurement, LoadsSettings):
    """Time loading a checkpoint as stored and converted by a manifest, in turn."""

    path: CheckpointPath
    """Folder of a checkpoint, or `demo`."""
    manifest: Annotated[str, tyro.conf.arg(metavar="NAME|FILE")]
    """Recipe or manifest that converts it while it is loaded."""

    def run(self) -> int:
        return _measure(self, self, [None, self.manifest], self.path)


def _measure(left: Measurement, settings: LoadsSettings, manifests: list[str | None], path: str) -> int:
    left.open_report()
    from intarsia.evidence.forms import open_form
    from intarsia.evidence.loads.run import measure_loads
    from intarsia.evidence.receipts import loads_receipt

    forms = [open_form(path, manifest) for manifest in manifests]
    run = measure_loads(forms, settings, progress=terminal_progress())
    if left.json:
        emit_json(run.as_dict())
    else:
        show(run)
    left.keep(partial(loads_receipt, run), f"loads-{run.forms[-1].label}")
    return 0


def show(run: "LoadsRun") -> None:
    """The medians against the floor, the phases of every load, and the floor's rates."""
    show_medians(run)
    show_phases(run)
    copying = f", copying {run.floors.copying / 1e9:.1f}" if run.floors.copying else ""
    threads = counted(run.floors.threads, "thread")
    note(f"floors, GB/s: reading with {threads} {run.floors.reading / 1e9:.1f}{copying}")
    if not run.peak_to_plan:
        note(f"not shown: {PEAKS_ON_A_CPU}")


def show_medians(run: "LoadsRun") -> None:
    """Each form's median against the floor, and its highest peak where that says something."""
    rows, peaks = [], run.peak_to_plan
    for form in run.forms:
        samples, median = run.of(form), run.median(form)
        floor = run.floors.seconds(samples[0].read_bytes)
        rows.append(
            (
                form.label,
                f"{median:.3f}",
                f"{samples[0].read_bytes / median / 1e9:.2f}",
                f"{floor:.3f}",
                f"{median / floor:.2f}",
                f"{median / run.median(run.forms[0]):.2f}",
                *([f"{peaks[form.label]:.3f}"] if peaks else []),
            )
        )
    columns = ["load", "seconds", "GB/s", "floor", "to the floor", "to as stored"]
    columns += ["peak to the plan's"] if peaks else []
    show_table(f"{run.settings.device}, {'cold' if run.settings.cold else 'as cached'}", columns, rows)


def show_phases(run: "LoadsRun") -> None:
    """Where the seconds of every load went."""
    phases = [
        (
            sample.form,
            f"{sample.rate / 1e9:.2f}",
            f"{sample.headers:.3f}",
            f"{sample.load:.3f}",
            *(
                "-" if seconds is None else f"{seconds:.3f}"
                for seconds in (sample.planning, sample.sending, sample.waiting)
            ),
            f"{sample.device_after:.3f}",
            *("-" if seconds is None else f"{seconds:.3f}" for seconds in (sample.reading, sample.no_buffer)),
        )
        for sample in run.samples
    ]
    parts = (
        "load",
        "GB/s",
        "headers",
        "load",
        "of it: check, plan",
        "copy, scatter",
        "wait for bytes",
        "device after",
        "threads: read",
        "no buffer",
    )
    show_table("seconds by phase", parts, phases)
