"""intarsia quality: what a conversion costs in quality."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from intarsia.cli.options import CheckpointPath, Measurement
from intarsia.cli.output import emit_json, printable
from intarsia.cli.progress import terminal_progress
from intarsia.cli.ranks import start_ranks
from intarsia.cli.tables import show_table
from intarsia.core.errors import UsageError
from intarsia.evidence.quality.settings import QualitySettings

if TYPE_CHECKING:
    from intarsia.evidence.forms import Form
    from intarsia.evidence.quality.measure import Quality

WORST_SHOWN = 5
Name = Annotated[str | None, tyro.conf.arg(metavar="NAME|FILE")]


@dataclass(frozen=True, kw_only=True)
class QualityCommand(Measurement, QualitySettings):
    """Compare what two forms of a model say about a text, and their weights.

    `intarsia quality demo --manifest spark` compares the demo as stored with what a recipe makes of it. The
    base is read twice first; unless both times give the same bits, nothing is compared. Exit code 1 when it
    does not, and when a weight is farther from its source than its format explains.
    """

    base: CheckpointPath
    """Checkpoint that is the reference, or `demo`."""
    candidate: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="CANDIDATE")] = None
    """Checkpoint or manifest to compare with it; the base itself when not given."""
    manifest: Name = None
    """Recipe or manifest that converts the candidate while it is loaded."""
    base_manifest: Name = None
    """The same for the base."""
    text: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """Text in UTF-8; documents end with <|endoftext|>, else at blank lines. The demo brings its own."""
    no_layers: bool = False
    """Leave the weights' own errors out."""

    def run(self) -> int:
        self.open_report()
        same = self.candidate is None and self.manifest is None and self.kv_cache_dtype == "auto"
        if same and self.tp == 1:
            raise UsageError(
                "candidate",
                found="nothing to compare with",
                action="name a checkpoint, or use --manifest, --kv-cache-dtype, or --tp for several ranks",
            )
        from intarsia.evidence.quality.measure import measure_on, prepare

        task = prepare(*self._forms(), self.text, self)  # refused once, before there are several ranks
        code = start_ranks(self.rank_settings())
        if code is not None:
            return code

        from intarsia.evidence.quality.ranks import meet
        from intarsia.evidence.receipts import quality_receipt

        ranks = meet(task.base, task.candidate, self)
        found = measure_on(ranks, task, layers=not self.no_layers, progress=terminal_progress())
        if found is None:
            return ranks.end(0)
        receipt = quality_receipt(found)
        if self.json:
            emit_json(receipt.results)
        else:
            show(found)
        self.keep(lambda: receipt, f"quality-{found.candidate.label}")
        return ranks.end(1 if found.layers is not None and found.layers.suspects else 0)

    def _forms(self) -> "tuple[Form, Form]":
        """Base and candidate."""
        from intarsia.evidence.forms import is_manifest, open_form

        path, manifest = self.candidate or self.base, self.manifest
        if self.candidate is not None and is_manifest(self.candidate):
            if manifest is not None:
                raise UsageError("manifest", found="two manifests for the candidate", expected="one")
            path, manifest = self.base, self.candidate
        if self.candidate is None and manifest is None:
            manifest = self.base_manifest  # the same weights, on more ranks or with other caches
        candidate = open_form(path, manifest).with_latents(self.kv_cache_dtype)
        return open_form(self.base, self.base_manifest), candidate


def show(found: "Quality") -> None:
    """The figures for people."""
    figures = found.figures
    kld, nll, top1 = figures["kld"], figures["nll"], figures["top1"]
    low, high = kld["interval_documents"]
    print(printable(f"{found.base.label} -> {found.candidate.label}"))
    print(
        f"{figures['positions']:,} positions of {figures['documents_measured']} documents; the base read "
        f"{found.repeat.positions:,} of them twice with a KLD of {found.repeat.largest_kld:g}"
    )
    again = found.candidate_repeat
    if again is not None:
        print(
            f"{found.settings.tp} ranks read {again.positions:,} of them twice with a KLD of "
            f"{again.largest_kld:g}"
        )
    show_table(
        "Against the base",
        ("figure", "value"),
        [
            ("KLD, nats a token", f"{kld['mean']:.6g} ({low:.4g} to {high:.4g})"),
            (
                "KLD p50 / p95 / p99 / max",
                " / ".join(f"{kld[name]:.4g}" for name in ("p50", "p95", "p99", "max")),
            ),
            ("NLL, nats a token", f"{nll['base']:.6f} -> {nll['candidate']:.6f} ({nll['difference']:+.6f})"),
            (
                "perplexity",
                f"{figures['perplexity']['base']:.4f} -> {figures['perplexity']['candidate']:.4f}",
            ),
            ("same first choice", f"{top1['agreement']:.3%} ({top1['differing']:,} differ)"),
        ],
    )
    if found.layers is None:
        return
    layers = found.layers
    rows = [
        (row.name, row.format, f"{row.error:.4g}", f"{row.row_ratio:.3g}", f"{row.worst_row}")
        for row in layers.changed[:WORST_SHOWN]
    ]
    if rows:
        columns = ("tensor", "format", "error", "worst row, times its format", "row")
        show_table("Weights, worst first", columns, rows)
    counts = f"{len(layers.changed):,} tensors differ, {layers.identical:,} are equal"
    print(f"{counts}, {len(layers.suspects)} suspect")
