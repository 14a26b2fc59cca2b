"""The page's parts on steps of written tokens and on prompts: times against floors, and where they go."""

from collections.abc import Mapping, Sequence
from typing import Any

from intarsia.core.words import counted
from intarsia.evidence.report.bars import Bar, bar_list
from intarsia.evidence.report.lines import Path, Source
from intarsia.evidence.report.markup import Content, Markup, join, key, table, tag
from intarsia.evidence.report.numbers import MISSING, number, percent, size

MOST_OPERATIONS = 16
STEPS = (
    "streams",
    "ms a step",
    "floor, ms",
    "floor's share",
    "tokens/s",
    "kernels a layer",
    "boundaries, ms",
    "highest memory",
    "captured",
)
PROMPTS = ("tokens", "rows at once", "ms", "tokens/s", "TFLOP/s", "of the device's")
DRAFTS = ("streams", "guesses", "verifying, ms", "guessing, ms", "floor of both, ms", "break-even")


def decode_part(sources: Sequence[Source]) -> Markup:
    """All receipts of `bench decode`."""
    return join([tag("h2", "Decode"), *(_decode(source) for source in sources)])


def prefill_part(sources: Sequence[Source]) -> Markup:
    """All receipts of `bench prefill`."""
    return join([tag("h2", "Prompts"), *(_prompts(source) for source in sources)])


def _decode(source: Source) -> Markup:
    cells: list[dict[str, Any]] = source.value("results", "decode")
    groups = []
    for cell in cells:
        ms, floor = 1e3 * cell["seconds"], 1e3 * cell["floor_seconds"]
        shown = f"{number(ms)} ms (floor {number(floor)})"
        groups.append((counted(cell["streams"], "stream"), [Bar(ms, shown, limit=floor)]))
    parts: list[Content] = [_head(source)]
    if groups:
        plot = bar_list("Time of a step against its floor", groups)
        floor = key("l", "floor")
        parts.append(_figure(plot, "A step of one row a stream; ", floor, ": the bytes it reads."))
    parts.append(table(STEPS, [_step(source, index, cell) for index, cell in enumerate(cells)]))
    drafted = [_drafted(source, i, cell) for i, cell in enumerate(cells) if cell.get("drafting")]
    if drafted:
        parts.append(table(DRAFTS, drafted, caption="Steps that verify guesses"))
    for index, cell in enumerate(cells):
        title = f"A step of {counted(cell['streams'], 'stream')}"
        parts.append(_operations(source, cell, ("results", "decode", index), title))
    return tag("section", *parts)


def _figure(plot: Markup, *caption: Content) -> Markup:
    return tag("div", tag("figure", plot, tag("figcaption", *caption)), class_="plots")


def _step(source: Source, index: int, cell: Mapping[str, Any]) -> list[Content]:
    at = ("results", "decode", index)
    return [
        f"{cell['streams']}",
        source.link(number(1e3 * cell["seconds"]), *at, "seconds"),
        source.link(number(1e3 * cell["floor_seconds"]), *at, "floor_seconds"),
        percent(cell["floor_seconds"] / cell["seconds"], 1),
        number(cell["streams"] / cell["seconds"]),
        source.link(f"{cell['kernels_a_layer']:.1f}", *at, "kernels_a_layer"),
        source.link(number(1e3 * cell["boundary_seconds"], 3), *at, "boundary_seconds"),
        source.link(size(cell["peak_bytes"]), *at, "peak_bytes"),
        tag("span", f"no: {cell['eager_because']}", class_="bad") if cell["eager_because"] else "yes",
    ]


def _drafted(source: Source, index: int, cell: Mapping[str, Any]) -> list[Content]:
    drafting, at = cell["drafting"], ("results", "decode", index, "drafting")
    names = ("verify_seconds", "chain_seconds", "floor_seconds")
    times = [source.link(number(1e3 * drafting[name]), *at, name) for name in names]
    break_even = drafting.get("break_even")
    last = MISSING if break_even is None else source.link(f"{break_even:.2f}", *at, "break_even")
    return [f"{cell['streams']}", f"{drafting['drafts']}", *times, last]


def _prompts(source: Source) -> Markup:
    cells: list[dict[str, Any]] = source.value("results", "prompts")
    groups = [
        (f"{cell['tokens']:,} tokens", [Bar(100 * cell["share"], percent(cell["share"], 1), limit=100.0)])
        for cell in cells
    ]
    parts: list[Content] = [_head(source)]
    if groups:
        plot = bar_list("Operations a second, of what the device holds", groups)
        held = key("l", "large BF16 products")
        parts.append(_figure(plot, "Operations a second in percent of ", held, "."))
    parts.append(table(PROMPTS, [_prompt(source, index, cell) for index, cell in enumerate(cells)]))
    for index, cell in enumerate(cells):
        title = f"The first two pieces of {cell['tokens']:,} tokens"
        parts.append(_operations(source, cell, ("results", "prompts", index), title))
    return tag("section", *parts)


def _prompt(source: Source, index: int, cell: Mapping[str, Any]) -> list[Content]:
    at = ("results", "prompts", index)
    return [
        f"{cell['tokens']:,}",
        f"{cell['piece']:,}",
        source.link(number(1e3 * cell["seconds"]), *at, "seconds"),
        f"{cell['tokens'] / cell['seconds']:,.0f}",
        source.link(f"{cell['rate'] / 1e12:.0f}", *at, "rate"),
        source.link(percent(cell["share"], 1), *at, "share"),
    ]


def _head(source: Source) -> Markup:
    """What ran, and what the device can do."""
    results = source.value("results")
    rates = results["rates"]
    gpu = results["machine"].get("gpu", {})
    clock, warm = (results["clocks_after"].get(name) for name in ("clock_mhz", "temperature_c"))
    state = f" Afterwards {clock} MHz, {warm} °C." if clock is not None and warm is not None else ""
    kernels = f" Configurations of kernels: {gpu['kernels']}." if "kernels" in gpu else ""
    told = (
        f"{gpu.get('name', results['machine'].get('device', ''))} streams ",
        source.link(f"{rates['bytes_a_second'] / 1e12:.2f} TB/s", "results", "rates", "bytes_a_second"),
        ", multiplies at ",
        source.link(
            f"{rates['operations_a_second'] / 1e12:.0f} TFLOP/s", "results", "rates", "operations_a_second"
        ),
        ".",
        state,
        kernels,
    )
    return join([tag("h3", results["label"]), tag("p", *told, class_="soft")])


def _operations(source: Source, cell: Mapping[str, Any], at: Path, title: str) -> Markup:
    """Where the time goes, the longest first; folded, since there is one for every cell."""
    shares: list[dict[str, Any]] = cell.get("operations") or []
    if not shares:
        return Markup("")
    total = sum(share["seconds"] for share in shares)
    rows = [
        [
            share["operation"],
            f"{share['calls']}",
            f"{share['kernels']}",
            source.link(f"{1e6 * share['seconds']:,.1f}", *at, "operations", index, "seconds"),
            percent(share["seconds"] / total, 1),
        ]
        for index, share in enumerate(shares[:MOST_OPERATIONS])
    ]
    grid = table(("operation", "calls", "kernels", "us", "share"), rows)
    return tag("details", tag("summary", title), grid)
