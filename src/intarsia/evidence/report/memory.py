"""The page's part on memory: every owner's bytes, predicted and measured."""

from collections.abc import Sequence
from typing import Any

from intarsia.core.words import counted
from intarsia.evidence.report.bars import Bar, bar_list
from intarsia.evidence.report.lines import Source
from intarsia.evidence.report.markup import Content, Markup, join, key, table, tag
from intarsia.evidence.report.numbers import number, size

MOST_BARS = 8
MOMENTS = (("service", "In service"), ("load peak", "At the load's peak"))


def memory_part(sources: Sequence[Source]) -> Markup:
    """All memory ledgers."""
    return join([tag("h2", "Memory"), *(_one(source) for source in sources)])


def _one(source: Source) -> Markup:
    results = source.value("results")
    parts: list[Content] = [
        tag("h3", results["subject"]["label"]),
        tag(
            "p",
            f"{results['device']}, {counted(results['streams'], 'stream')}, ",
            f"{number(results['context'])} tokens each. "
            "Predicted from headers before anything was read; measured tensor by tensor.",
            class_="soft",
        ),
    ]
    moments = [
        (title, [(index, row) for index, row in enumerate(results["owners"]) if row["moment"] == moment])
        for moment, title in MOMENTS
    ]
    plots = [_plot(title, [row for _, row in owners]) for title, owners in moments]
    parts.append(tag("div", *plots, class_="plots"))
    parts += [_table(source, title, owners) for title, owners in moments]
    return tag("section", *parts)


def _plot(title: str, owners: Sequence[dict[str, Any]]) -> Markup:
    shown = sorted(owners, key=lambda row: -(row["measured"] or row["predicted"] or 0))[:MOST_BARS]
    groups = [
        (
            row["owner"],
            [
                Bar(row[name], size(row[name]), series)
                for series, name in enumerate(("predicted", "measured"))
                if row[name] is not None
            ],
        )
        for row in shown
        if row["predicted"] or row["measured"]
    ]
    keys = [key(series, name) for series, name in enumerate(("predicted", "measured"))]
    plot = bar_list(f"{title}: bytes by owner", groups)
    return tag("figure", plot, tag("figcaption", f"{title}, the largest owners.", *keys))


def _table(source: Source, title: str, owners: Sequence[tuple[int, dict[str, Any]]]) -> Markup:
    rows = []
    for index, row in owners:
        known = row["predicted"] is not None and row["measured"] is not None
        gap = number(row["measured"] - row["predicted"]) if known else "not measured"
        rows.append(
            [
                row["owner"],
                source.link(number(row["predicted"]), "results", "owners", index, "predicted"),
                source.link(number(row["measured"]), "results", "owners", index, "measured"),
                gap,
            ]
        )
    return table(("owner", "predicted, bytes", "measured, bytes", "difference"), rows, caption=title)
