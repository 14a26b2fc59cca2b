"""intarsia bench speed: prompts and replies of one form of a model, or of two in turn."""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import tyro

from intarsia.cli.bench_compare import show_comparison, show_run
from intarsia.cli.options import CheckpointPath, Measurement
from intarsia.cli.output import emit_json
from intarsia.cli.progress import terminal_progress
from intarsia.evidence.speed.settings import SpeedSettings

Name = Annotated[str | None, tyro.conf.arg(metavar="NAME|FILE")]


@dataclass(frozen=True, kw_only=True)
class BenchSpeed(Measurement, SpeedSettings):
    """Time prompts and replies of a model; with a second form, both in turn: A B A B ... A.

    Every sample begins with an empty state, and the warm-up is kept apart. Repeating A at the end shows how
    far the machine drifted.
    """

    path: CheckpointPath
    """Folder of a checkpoint, or `demo`."""
    manifest: Name = None
    """Recipe or manifest that converts it while it is loaded."""
    against: Annotated[str | None, tyro.conf.arg(metavar="PATH")] = None
    """A second checkpoint, measured in turn with the first."""
    against_manifest: Name = None
    """Recipe or manifest of the second form; of the first checkpoint unless --against names another."""
    text: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """Text that prompts are cut from. The demo brings its own."""

    def run(self) -> int:
        self.open_report()
        from intarsia.evidence.forms import open_form
        from intarsia.evidence.receipts import speed_receipt
        from intarsia.evidence.speed.run import measure_speed

        forms = [open_form(self.path, self.manifest)]
        if self.against is not None or self.against_manifest is not None:
            forms.append(open_form(self.against or self.path, self.against_manifest))
        measured = measure_speed(forms, self, self.text, progress=terminal_progress())
        runs = [run.as_dict() for run in measured]
        if self.json:
            emit_json(runs)
        else:
            for run in runs:
                show_run(run)
            if len(runs) > 1:
                show_comparison(*runs)
        for letter, one in zip("ab", measured, strict=False):
            self.keep(partial(speed_receipt, one), f"speed-{letter}-{one.form.label}")
        return 0
