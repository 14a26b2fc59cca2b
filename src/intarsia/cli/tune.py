"""intarsia tune: find the fastest configuration of every kernel on this device, and keep it in a file."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from intarsia.cli.explain import values_in_words
from intarsia.cli.output import INTERRUPTED, emit_json, note, stoppable
from intarsia.cli.progress import terminal_progress
from intarsia.cli.tables import show_table
from intarsia.evidence.tuning.settings import TuneSettings

if TYPE_CHECKING:
    from intarsia.evidence.tuning.run import TuneRun
    from intarsia.kernels.tuning.search import Searched

COLUMNS = ("operation", "formats", "shape", "rows", "default, us", "best, us", "tried", "configuration")


@dataclass(frozen=True, kw_only=True)
class Tune(TuneSettings):
    """Find the fastest configurations of kernels on this device and keep them in a file.

    Candidates give the same bits as the default, which is verified before they are timed, at the clock that
    the device holds; one replaces the default only where it is faster by more than the repeats differ. The
    file holds for this device, these versions and these kernels; loading uses it, and nothing tunes by
    itself.
    """

    path: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[PATH]")] = None
    """Folder of a checkpoint, or `demo`, whose sizes are tuned; or none, with --geometry."""
    out: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """File to write; by default that of this device in $XDG_CACHE_HOME/intarsia/tuning (~/.cache), which
    loading finds. One that is there is replaced as a whole."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from intarsia.evidence.tuning.run import device_of, tune
        from intarsia.kernels.tuning import cache
        from intarsia.loading.weights import prepared

        arrangement = prepared(self.path) if self.path is not None else None
        device = device_of(self, arrangement)
        target = Path(self.out) if self.out else cache.default_path(device)
        cache.check_writable(target)
        with stoppable():
            found = tune(self, arrangement, progress=terminal_progress())
        if found.searched:
            cache.write(found.document, target)
        if self.json:
            emit_json({"file": str(target) if found.searched else None, **found.as_dict()})
        else:
            show(found)
            note(f"written: {target}" if found.searched else "nothing was tuned, and no file written")
        if found.interrupted:
            return INTERRUPTED
        return 0 if found.searched else 1


def show(run: "TuneRun") -> None:
    """A row a site, then what was refused and left."""
    show_table("configurations", COLUMNS, [_row(one) for one in run.searched])
    better = [one for one in run.searched if one.found.us < one.found.default_us]
    note(f"{len(better)} of {len(run.searched)} sites run faster with another configuration")
    reasons: dict[str, int] = {}
    for refused in run.document.refused:
        reasons[refused.reason] = reasons.get(refused.reason, 0) + 1
    for reason, count in reasons.items():
        note(f"note: {count} candidates refused: {reason}")
    for site, reason in run.left.items():
        note(f"note: not tuned: {site}: {reason}")


def _row(one: "Searched") -> tuple[str, ...]:
    from intarsia.kernels.tuning import described

    site, found = one.site, one.found
    changed = found.us < found.default_us
    values = described(found.configuration)
    return (
        site.operation,
        "+".join(site.formats),
        ", ".join(map(str, site.shape)),
        f"{site.rows:,}",
        f"{found.default_us:.2f} ± {found.default_spread_us / 2:.2f}",
        f"{found.us:.2f} ± {found.spread_us / 2:.2f}" if changed else "-",
        str(one.tried),
        values_in_words(values) if changed else "the default",
    )
