"""intarsia audit: check that a checkpoint is whole and consistent."""

from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated

import tyro

from intarsia.cli.options import CheckpointPath
from intarsia.cli.output import emit_json, gigabytes, printable
from intarsia.cli.progress import terminal_progress
from intarsia.core.errors import UsageError, Violation
from intarsia.core.words import counted

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
    expect: Annotated[str | None, tyro.conf.arg(metavar="MANIFEST")] = None
    """Also check that the checkpoint is exactly this manifest's selection; its bytes too, where it has the
    record that convert writes."""
    source: Annotated[str | None, tyro.conf.arg(metavar="PATH")] = None
    """With --expect: encode this source again and compare every byte."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from intarsia import api

        if self.source is not None and self.expect is None:
            raise UsageError("--source", found="no --expect", expected="--expect MANIFEST with it")
        report = api.audit(self.path, values=self.values, progress=terminal_progress())
        if self.expect is not None:
            report = replace(report, violations=(*report.violations, *self._unexpected(report)))
        if self.json:
            emit_json({**asdict(report), "clean": report.clean})
        else:
            show(report)
        return 0 if report.clean else 1

    def _unexpected(self, report: "AuditReport") -> list[Violation]:
        """What is not the manifest's selection and not said already."""
        from intarsia import api

        manifest = api.read_manifest(self.expect or "")
        checkpoint = api.open_checkpoint(self.path, strict=False)
        source = api.open_checkpoint(self.source) if self.source is not None else None
        found = api.verify_export(checkpoint, manifest, source=source, progress=terminal_progress())
        return [violation for violation in found if violation not in report.violations]


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
    print(f"{counted(report.tensors, 'tensor')} {checked}, {counted(report.shards, 'shard')}, {size}{values}")
    if report.clean:
        print("clean")
        return
    rules = Counter(violation.rule for violation in report.violations)
    counts = ", ".join(f"{count} {rule}" for rule, count in rules.most_common())
    print(f"{counted(len(report.violations), 'violation')}: {counts}")
