"""intarsia audit: check that a checkpoint is whole and consistent."""

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from intarsia.cli.options import CheckpointPath
from intarsia.cli.output import emit_json, gigabytes, printable
from intarsia.cli.progress import terminal_progress

if TYPE_CHECKING:
    from intarsia.checkpoint import AuditReport


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Check that a checkpoint is whole and consistent; every violation is reported at once.

    Exit code 1 when there is one.
    """

    path: CheckpointPath
    """Folder of a checkpoint, or `demo`."""
    values: bool = False
    """Also read all scales and numbers and check their values."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from intarsia import api

        report = api.audit(self.path, values=self.values, progress=terminal_progress())
        if self.json:
            emit_json({**asdict(report), "clean": report.clean})
        else:
            show(report)
        return 0 if report.clean else 1


def show(report: "AuditReport") -> None:
    """Notes, violations, then one line that sums up."""
    for note in report.notes:
        print(printable(f"note: {note}"))
    for violation in report.violations:
        print(printable(str(violation)))
    checked = "held against the architecture" if report.complete else "of an architecture not known by tensor"
    values = (
        f", {gigabytes(report.values_read)} of values read" if report.values_read else ", values not read"
    )
    size = gigabytes(report.weight_bytes)
    print(f"{report.tensors:,} tensors {checked}, {report.shards} shards, {size}{values}")
    if report.clean:
        print("clean")
        return
    rules = Counter(violation.rule for violation in report.violations)
    counts = ", ".join(f"{count} {rule}" for rule, count in rules.most_common())
    print(f"{len(report.violations)} violations: {counts}")
