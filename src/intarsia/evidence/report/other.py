"""Receipts of other kinds: what they measured, as far as it is a number or a word."""

from collections.abc import Iterator, Mapping
from typing import Any

from intarsia.evidence.report.lines import Path, Source
from intarsia.evidence.report.markup import Content, Markup, table, tag
from intarsia.evidence.report.numbers import number

MOST_ROWS = 40


def other_part(source: Source) -> Markup:
    """One receipt as a list of its single values."""
    rows: list[list[Content]] = []
    for part in ("measured", "predicted", "results"):
        for path, value in _values((part,), source.value(part)):
            shown = number(value, 6) if isinstance(value, int | float) and value is not True else str(value)
            rows.append([" ".join(map(str, path)), source.link(shown, *path)])
    shown_rows = rows[:MOST_ROWS]
    rest = len(rows) - len(shown_rows)
    return tag(
        "section",
        tag("h2", f"{source.receipt.kind}: {source.name}"),
        table(("figure", "value"), shown_rows) if shown_rows else tag("p", "No single figures."),
        tag("p", f"and {rest} more in the receipt", class_="soft") if rest > 0 else "",
    )


def _values(path: Path, value: Any) -> Iterator[tuple[Path, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _values((*path, key), item)
    elif value is not None and not isinstance(value, list):
        yield path, value
