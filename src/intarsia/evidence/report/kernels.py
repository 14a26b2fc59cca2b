"""The page's part on kernels: every operation against its floor, its aim, and peers beside."""

from collections.abc import Mapping, Sequence
from typing import Any

from intarsia.evidence.report.bars import Bar, bar_list
from intarsia.evidence.report.lines import Source
from intarsia.evidence.report.markup import Content, Markup, join, key, table, tag
from intarsia.evidence.report.numbers import MISSING, number

BESIDE = "beside, us"
COLUMNS = ("case", "rows", "us", "nine of ten", "floor", "to the floor", "aim", BESIDE)
Key = tuple[str, str, int]


def kernels_part(sources: Sequence[Source]) -> Markup:
    """All receipts of `bench kernels`."""
    return join([tag("h2", "Kernels"), *(_one(source) for source in sources)])


def _one(source: Source) -> Markup:
    results = source.value("results")
    aims = {_key(aim): index for index, aim in enumerate(results["aims"]) if _of_row(aim)}
    rows: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for index, row in enumerate(results["rows"]):
        rows.setdefault(row["operation"], []).append((index, row))
    gpu = results["machine"].get("gpu", {})
    parts: list[Content] = [
        tag("h3", f"{results['geometry']} on {gpu.get('name', 'an unnamed device')}"),
        tag("p", *_about(source, results), class_="soft"),
        tag("div", _plot(results, aims), class_="plots"),
    ]
    parts += [_table(source, name, members, aims) for name, members in rows.items()]
    return tag("section", *parts)


def _about(source: Source, results: Mapping[str, Any]) -> list[Content]:
    """The device's rates, and its state during the run."""
    rates = results["rates"]
    streamed, multiplied = rates["bytes_a_second"] / 1e12, rates["operations_a_second"] / 1e12
    told: list[Content] = [
        "It streams ",
        source.link(f"{streamed:.2f} TB/s", "results", "rates", "bytes_a_second"),
        " and multiplies BF16 at ",
        source.link(f"{multiplied:.0f} TFLOP/s", "results", "rates", "operations_a_second"),
        "; floors follow from those. Weights in turn, not in the L2 cache; medians.",
    ]
    for name, unit in (("clock_mhz", "MHz"), ("temperature_c", "°C")):
        found = [row[name] for row in results["rows"] if row.get(name) is not None]
        if found:
            told.append(f" {min(found)} to {max(found)} {unit} after the figures.")
    if kernels := results["machine"].get("gpu", {}).get("kernels"):
        told.append(f" Configurations: {kernels}.")
    if (ahead := results.get("compiled")) and ahead["processes"]:
        seconds = source.link(number(ahead["seconds"]), "results", "compiled", "seconds")
        told += [f" Before the first figure {ahead['processes']} processes compiled for ", seconds, " s."]
    if results.get("interrupted"):
        told += [" ", tag("span", "The run was interrupted.", class_="bad")]
    return told


def _plot(results: Mapping[str, Any], aims: Mapping[Key, int]) -> Markup:
    """What has an aim: times over their floors, the aim as a tick."""
    groups = []
    for row in results["rows"]:
        index = aims.get(_key(row))
        if index is None:
            continue
        aim = results["aims"][index]["aim_us"]
        shown = f"{row['ratio']:.2f} ({number(row['us'])} us, aim {number(aim)})"
        bar = Bar(row["ratio"], shown, limit=aim / row["floor_us"])
        groups.append((f"{row['operation']}: {row['case']}, {row['rows']:,} rows", [bar]))
    if not groups:
        return Markup("")
    plot = bar_list("Times over their floors", groups)
    caption = ("Times over their floors; ", key("l", "aim"), f" of {len(groups)} figures that have one.")
    return tag("figure", plot, tag("figcaption", *caption))


def _table(
    source: Source, name: str, members: Sequence[tuple[int, Mapping[str, Any]]], aims: Mapping[Key, int]
) -> Markup:
    rows = [_row(source, index, row, aims) for index, row in members]
    return table(COLUMNS, rows, caption=name, words=(COLUMNS.index(BESIDE),))


def _row(source: Source, index: int, row: Mapping[str, Any], aims: Mapping[Key, int]) -> list[Content]:
    at = ("results", "rows", index)
    low, high = row.get("low_us"), row.get("high_us")
    beside: list[Content] = []
    for name, us in row["beside"].items():
        figure = source.link(number(us), *at, "beside", name)
        beside += [", " if beside else "", tag("span", f"{name} ", figure, class_="series")]
    return [
        row["case"],
        f"{row['rows']:,}",
        source.link(number(row["us"]), *at, "us"),
        MISSING if low is None or high is None else f"{number(low)} to {number(high)}",
        source.link(number(row["floor_us"]), *at, "floor_us"),
        source.link(f"{row['ratio']:.2f}", *at, "ratio"),
        _aim(source, aims.get(_key(row))),
        beside or MISSING,
    ]


def _aim(source: Source, index: int | None) -> Content:
    if index is None:
        return ""
    aim = source.value("results", "aims", index)
    shown = source.link(number(aim["aim_us"]), "results", "aims", index, "aim_us")
    word = tag("span", "met", class_="good") if aim["met"] else tag("span", "not met", class_="bad")
    return [shown, " ", word]


def _key(row: Mapping[str, Any]) -> Key:
    return row["operation"], row["case"], row["rows"]


def _of_row(aim: Mapping[str, Any]) -> bool:
    """Whether an aim speaks of a row's own time; receipts of before aims named their rows do not say."""
    return bool(aim.get("operation")) and not aim.get("of")
