"""intarsia inspect: say what is in a checkpoint."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from intarsia.cli.options import CheckpointPath
from intarsia.cli.output import emit_json, gigabytes, printable
from intarsia.cli.tables import show_table
from intarsia.core.words import counted

if TYPE_CHECKING:
    from intarsia.checkpoint import Summary

MOST_ROWS = 20


@dataclass(frozen=True, kw_only=True)
class Inspect:
    """Say what is in a checkpoint: formats, bytes, shards, recipes, anything odd.

    Only headers are read. Exit code 1 when something in it is wrong.
    """

    path: CheckpointPath
    """Folder of a checkpoint, or `demo`."""
    all: bool = False
    """List every module class and shard, not just the largest."""
    json: bool = False
    """Print one JSON document, which always lists all."""

    def run(self) -> int:
        from intarsia import api

        summary = api.inspect(self.path)
        if self.json:
            emit_json(asdict(summary))
        else:
            show(summary, None if self.all else MOST_ROWS)
        return 1 if summary.violations else 0


def show(summary: "Summary", most_rows: int | None) -> None:
    """The summary as tables of at most so many rows."""
    kind = summary.model_type or "an unnamed architecture"
    print(printable(f"{summary.path}: {kind}, {', '.join(summary.architectures) or 'no class named'}"))
    print(
        f"{counted(summary.tensors, 'tensor')}, {gigabytes(summary.tensor_bytes)}, in "
        f"{counted(len(summary.shards), 'shard')} of "
        f"{gigabytes(summary.weight_bytes)} together"
    )
    quantization = {name: value for name, value in summary.quantization.items() if value}
    if quantization.get("sources"):
        words = (f"{name.replace('_', ' ')}: {_words(value)}" for name, value in quantization.items())
        print(printable("quantization: " + "; ".join(words)))
    if summary.tensors:  # empty tables would hide what is wrong
        _show_tables(summary, most_rows)
    for title, findings in (("odd", summary.notes), ("wrong", summary.violations)):
        for finding in findings:
            print(printable(f"{title}: {finding}"))


def _show_tables(summary: "Summary", most_rows: int | None) -> None:
    show_table(
        "Formats",
        ("format", "scales", "modules", "weights", "bytes", "bits a weight"),
        [
            (
                row.format,
                row.codec or "-",
                f"{row.modules:,}",
                f"{row.elements:,}",
                gigabytes(row.bytes),
                f"{8 * row.bytes / row.elements:.2f}" if row.elements else "-",
            )
            for row in summary.formats
        ],
    )
    show_table(
        "Module classes",
        ("module", "part", "format", "modules", "bytes"),
        [
            (row.name, row.part, row.format, f"{row.modules:,}", gigabytes(row.bytes))
            for row in sorted(summary.classes, key=lambda row: -row.bytes)[:most_rows]
        ],
    )
    _say_rest(len(summary.classes), most_rows, "module classes")
    if summary.recipes:
        show_table(
            "Recipes in the metadata",
            ("recipe", "written as", "entries"),
            [(row.recipe, row.written, f"{row.entries:,}") for row in summary.recipes],
        )
    for group in summary.groups:
        print(f"{group.name}: {group.state}, {counted(group.tensors, 'tensor')}, {gigabytes(group.bytes)}")
    show_table(
        "Shards",
        ("file", "tensors", "bytes"),
        [(shard.name, f"{shard.tensors:,}", gigabytes(shard.bytes)) for shard in summary.shards[:most_rows]],
    )
    _say_rest(len(summary.shards), most_rows, "shards")


def _say_rest(count: int, most_rows: int | None, what: str) -> None:
    if most_rows is not None and count > most_rows:
        print(f"and {count - most_rows} more {what} (--all lists them)\n")


def _words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
