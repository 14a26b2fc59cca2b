"""intarsia bench compare: two speed runs, if nothing but their subject differs."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Annotated, Any

import tyro

from intarsia.cli.output import emit_json, printable, require_files
from intarsia.cli.tables import show_table


@dataclass(frozen=True, kw_only=True)
class BenchCompare:
    """Compare the receipts of two speed runs, paired by round.

    Runs whose settings, machine, text or cache states differ are refused, and every differing field is named.
    """

    a: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="A.json")]
    """Receipt of the run that is the reference."""
    b: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="B.json")]
    """Receipt of the other."""
    json: bool = False
    """Print one JSON document."""

    def run(self) -> int:
        from intarsia.core import receipt as receipts
        from intarsia.core.errors import UsageError
        from intarsia.evidence.receipts import run_of
        from intarsia.evidence.speed.compare import compare_runs

        require_files("bench compare", (self.a, self.b))
        found = [receipts.read(path) for path in (self.a, self.b)]
        for path, receipt in zip((self.a, self.b), found, strict=True):
            if receipt.kind != "speed":
                raise UsageError(path, found=f"a receipt of kind {receipt.kind}", expected="a speed receipt")
        runs = [run_of(receipt) for receipt in found]
        if self.json:
            emit_json([asdict(row) | {"verdict": row.verdict} for row in compare_runs(runs[0], runs[1])])
        else:
            show_comparison(runs[0], runs[1])
        return 0


def show_comparison(a: Mapping[str, Any], b: Mapping[str, Any]) -> None:
    """Changes from A to B with their intervals; raises IncomparableError."""
    from intarsia.evidence.speed.compare import compare_runs

    rows = [
        (
            row.cell,
            f"{row.a_tokens_per_second:.1f}",
            f"{row.b_tokens_per_second:.1f}",
            f"{row.change:+.1%} ({row.interval[0]:+.1%} to {row.interval[1]:+.1%})",
            f"{row.drift:+.1%}",
            row.verdict,
        )
        for row in compare_runs(a, b)
    ]
    columns = ("cell", "A, tokens/s", "B, tokens/s", "change (95 %)", "drift of A", "so")
    show_table(printable(f"{b['label']} against {a['label']}"), columns, rows)


def show_run(run: Mapping[str, Any]) -> None:
    """One run: medians, floors, drafts, and what was left out."""
    from intarsia.evidence.speed.compare import drafting

    cells: dict[str, list[Mapping[str, Any]]] = {}
    for sample in run["samples"]:
        if not sample["warm_up"]:
            cells.setdefault(sample["cell"], []).append(sample)
    floors = {floor["cell"]: floor["seconds"] for floor in run["floors"]}
    rows = []
    for cell, samples in cells.items():
        speeds = [sample["tokens"] / sample["seconds"] for sample in samples]
        step = median(sample["seconds"] / max(sample["steps"], 1) for sample in samples)
        floor = f"{floors[cell] / step:.1%} of the floor's speed" if cell in floors else "-"
        rows.append((cell, f"{median(speeds):.1f}", f"{min(speeds):.1f} to {max(speeds):.1f}", floor))
    show_table(printable(run["label"]), ("cell", "tokens/s", "range", "floor"), rows)
    for row in drafting(run):
        print(
            f"{row.cell}: {row.acceptance:.1%} of drafts accepted, {row.tokens_per_step:.2f} tokens a step, "
            f"break-even {row.break_even:.2f}"
        )
    for left_out in run.get("not_run", ()):
        print(printable(f"not run: {left_out}"))
