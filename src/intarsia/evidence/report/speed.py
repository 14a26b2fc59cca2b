"""The page's part on speed: pairs of runs of one session, and runs by themselves, against the floor."""

from collections.abc import Sequence
from statistics import median
from typing import Any

from intarsia.evidence.errors import IncomparableError
from intarsia.evidence.receipts import run_of
from intarsia.evidence.report.bars import Bar, bar_list
from intarsia.evidence.report.lines import Source
from intarsia.evidence.report.markup import Content, Markup, join, key, table, tag
from intarsia.evidence.report.numbers import MISSING, change, number, percent
from intarsia.evidence.speed.compare import CellComparison, compare_runs


def speed_part(sources: Sequence[Source]) -> Markup:
    """All speed receipts; those of one session are compared."""
    sessions: dict[str, list[Source]] = {}
    for source in sources:
        sessions.setdefault(source.value("results", "session"), []).append(source)
    return join(
        [
            tag("h2", "Speed"),
            *(_session(members) for members in sessions.values()),
        ]
    )


def _session(members: Sequence[Source]) -> Markup:
    first = members[0]
    names = " and ".join(str(source.value("results", "label")) for source in members)
    machine = first.value("results", "machine")
    settings = first.value("settings")
    parts: list[Content] = [
        tag("h3", names),
        tag(
            "p",
            f"{machine['processor']}, threads: {machine['threads']}, {machine['device']}; ",
            first.link(f"{settings['rounds']} rounds", "settings", "rounds"),
            f", {first.value('results', 'design')}, warm-up apart. Every sample begins with an empty state; "
            "weights are in memory.",
            *_load(first),
            class_="soft",
        ),
        tag("div", _bars(members), class_="plots"),
    ]
    parts += [_against(first, other) for other in members[1:]]
    parts += [_drafting(source) for source in members]
    return tag("section", *parts)


def _load(source: Source) -> list[Content]:
    """What others did on the machine meanwhile; a receipt that is older does not say."""
    found = [source.value("results", f"clocks_{moment}", "load", 0) for moment in ("before", "after")]
    if None in found:
        return []
    shown = source.link(f"{found[0]:.2f}", "results", "clocks_before", "load")
    after = source.link(f"{found[1]:.2f}", "results", "clocks_after", "load")
    return [" Load of the machine before: ", shown, ", after: ", after, "."]


def _bars(members: Sequence[Source]) -> Markup:
    cells: dict[str, list[Bar]] = {}
    for series, source in enumerate(members):
        for cell, samples in _samples(source).items():
            speeds = [sample["tokens"] / sample["seconds"] for _, sample in samples]
            cells.setdefault(cell, []).append(
                Bar(median(speeds), f"{number(median(speeds))} tokens/s", series, min(speeds), max(speeds))
            )
    keys = [key(series, source.value("results", "label")) for series, source in enumerate(members)]
    plot = bar_list("Tokens a second of each cell", list(cells.items()))
    links = join([source.link("samples", "results", "samples") for source in members], " and ")
    told = tag("figure", plot, tag("figcaption", "Median and range of the ", links, ".", *keys))
    return join([told, _floors(members)])


def _floors(members: Sequence[Source]) -> Markup:
    """Decode steps against the time that reading their weights takes."""
    links: list[Markup] = []
    groups = []
    for series, source in enumerate(members):
        samples = _samples(source)
        for index, floor in enumerate(source.value("results", "floors")):
            if floor["cell"] not in samples:
                continue
            step = median(sample["seconds"] / sample["steps"] for _, sample in samples[floor["cell"]])
            name = f"{floor['cell']}: {source.value('results', 'label')}"
            shown = f"{number(1e3 * step, 3)} ms (floor {number(1e3 * floor['seconds'], 3)})"
            groups.append((name, [Bar(1e3 * step, shown, series, limit=1e3 * floor["seconds"])]))
            told = f"{number(1e3 * floor['seconds'], 3)} ms"
            links.append(source.link(told, "results", "floors", index, "seconds"))
    if not groups:
        return Markup("")
    plot = bar_list("Time of a decode step against its floor", groups)
    caption = (
        key("l", "floor"),
        ": the step's weights at the speed this machine reads as many bytes (",
        join(links, ", "),
        ").",
    )
    return tag("figure", plot, tag("figcaption", *caption))


def _against(a: Source, b: Source) -> Markup:
    try:
        compared = compare_runs(run_of(a.receipt), run_of(b.receipt))
    except IncomparableError as error:
        return tag("ul", *(tag("li", str(violation), class_="bad") for violation in error.violations))
    columns = ("cell", "so", "change", "95 %", "drift of A", "tokens/s of A", "of B")
    caption = f"B, {b.value('results', 'label')}, against A, {a.value('results', 'label')}, paired by round"
    return table(columns, [_compared(a, b, row) for row in compared], caption=caption)


def _compared(a: Source, b: Source, row: CellComparison) -> list[Content]:
    low, high = row.interval
    ours, theirs = (("results", "samples", _samples(side)[row.cell][0][0]) for side in (a, b))
    return [
        row.cell,
        row.verdict,
        b.link(change(row.change), *theirs),
        b.link(f"{change(low)} to {change(high)}", *theirs),
        a.link(change(row.drift), *ours),
        a.link(number(row.a_tokens_per_second), *ours),
        b.link(number(row.b_tokens_per_second), *theirs),
    ]


def _drafting(source: Source) -> Markup:
    found: list[dict[str, Any]] = source.value("results", "drafting") or []
    if not found:
        return Markup("")
    rows = [
        [
            row["cell"],
            source.link(percent(row["acceptance"], 1), "results", "drafting", index, "acceptance"),
            source.link(number(row["tokens_per_step"], 3), "results", "drafting", index, "tokens_per_step"),
            source.link(number(row["break_even"], 3), "results", "drafting", index, "break_even"),
            tag("span", "pays", class_="good")
            if row["tokens_per_step"] > row["break_even"]
            else tag("span", "does not pay", class_="bad"),
        ]
        for index, row in enumerate(found)
    ]
    caption = f"Drafting, {source.value('results', 'label')}"
    return table(
        ("cell", "accepted", "tokens a step", "break-even", "so"), rows or [[MISSING] * 5], caption=caption
    )


def _samples(source: Source) -> dict[str, list[tuple[int, dict[str, Any]]]]:
    """Samples that count with their places in the receipt, by cell."""
    found: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for index, sample in enumerate(source.value("results", "samples")):
        if not sample["warm_up"]:
            found.setdefault(sample["cell"], []).append((index, sample))
    return found
