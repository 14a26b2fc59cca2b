"""The page's part on quality: a table of all comparisons, and each with its plots."""

from collections.abc import Sequence
from typing import Any

from intarsia.evidence.report.lines import Source
from intarsia.evidence.report.markup import Content, Markup, join, key, table, tag
from intarsia.evidence.report.numbers import change, interval, number, percent, signed
from intarsia.evidence.report.svg import Axis, Plot, nice_top, short

WORST_TENSORS = 12
WORST_POSITIONS = 8
SERIES = (
    ("routed experts", "experts"),
    ("attention", "self_attn"),
    ("shared or dense", "mlp"),
    ("other", ""),
)


def quality_part(sources: Sequence[Source]) -> Markup:
    """All quality receipts."""
    columns = (
        "form",
        "KLD, nats a token",
        "95 % over documents",
        "p99",
        "NLL change",
        "perplexity",
        "same first choice",
        "repeat KLD",
    )
    rows = [_row(source) for source in sources]
    return join(
        [
            tag("h2", "Quality"),
            tag(
                "p",
                "Divergence of each form from its base over the whole vocabulary, teacher-forced on a text. "
                "The base was read twice first: the last column is what the second reading differed by.",
            ),
            table(columns, rows),
            *(_one(source) for source in sources),
        ]
    )


def _row(source: Source) -> list[Content]:
    def figure(shown: Content, *path: str | int) -> Markup:
        return source.link(shown, "results", "figures", *path)

    at = source.value("results", "figures")
    return [
        source.value("results", "candidate", "label"),
        figure(number(at["kld"]["mean"], 4), "kld", "mean"),
        figure(interval(at["kld"]["interval_documents"]), "kld", "interval_documents"),
        figure(number(at["kld"]["p99"], 3), "kld", "p99"),
        figure(signed(at["nll"]["difference"]), "nll", "difference"),
        figure(f"{at['perplexity']['candidate']:.4f}", "perplexity", "candidate"),
        figure(percent(at["top1"]["agreement"]), "top1", "agreement"),
        source.link(
            number(source.value("results", "repeat", "largest_kld")), "results", "repeat", "largest_kld"
        ),
    ]


def _one(source: Source) -> Markup:
    text = source.value("results", "text")
    figures = source.value("results", "figures")
    base = source.value("results", "base", "label")
    parts: list[Content] = [
        tag("h3", f"{source.value('results', 'candidate', 'label')} against {base}"),
        tag(
            "p",
            source.link(number(figures["positions"]), "results", "figures", "positions"),
            f" positions of {text['file']}, ",
            source.link(number(text["windows"]), "results", "text", "windows"),
            " windows of ",
            source.link(number(text["window_tokens"]), "results", "text", "window_tokens"),
            ", ",
            source.link(number(figures["documents_measured"]), "results", "figures", "documents_measured"),
            " documents. NLL ",
            source.link(f"{figures['nll']['base']:.4f}", "results", "figures", "nll", "base"),
            " in the base, ",
            source.link(f"{figures['nll']['candidate']:.4f}", "results", "figures", "nll", "candidate"),
            " here; perplexity ",
            source.link(
                change(figures["perplexity"]["ratio"] - 1), "results", "figures", "perplexity", "ratio"
            ),
            ". ",
            *_again(source, "The base", "repeat"),
            *(_again(source, "The candidate", "candidate_repeat")),
            class_="soft",
        ),
        tag("div", _histogram(source), _positions(source), _layers(source), class_="plots"),
        _suspects(source),
        _worst_tensors(source),
        _worst_positions(source),
    ]
    return tag("section", *parts)


def _again(source: Source, who: str, part: str) -> list[Content]:
    """What reading the first windows again gave, if they were."""
    if source.value("results", part) is None:
        return []
    positions = source.link(number(source.value("results", part, "positions")), "results", part, "positions")
    kld = source.link(number(source.value("results", part, "largest_kld")), "results", part, "largest_kld")
    return [f"{who} read ", positions, " positions again with a KLD of ", kld, ". "]


def _figure(plot: Markup, *caption: Content) -> Markup:
    return tag("figure", plot, tag("figcaption", *caption))


def _histogram(source: Source) -> Markup:
    at = source.value("results", "figures", "histogram")
    kld = source.value("results", "figures", "kld")
    edges, counts = at["edges"], at["counts"]
    filled = [index for index, count in enumerate(counts) if count]
    if not filled:
        zero = source.link(number(at["below"]), "results", "figures", "histogram", "below")
        return tag("p", "All ", zero, f" positions have a KLD below {short(edges[0])} nats.")
    first, last = max(filled[0] - 1, 0), min(filled[-1] + 2, len(counts))
    top = 1.25 * max(counts)  # room for the names of the lines
    plot = Plot(
        "Histogram of the KLD of each position",
        Axis(edges[first], edges[last], "KLD of a position, nats", log=True),
        Axis(0, top, "positions"),
    )
    for index in range(first, last):
        tip = f"{counts[index]:,} positions from {short(edges[index])} to {short(edges[index + 1])}"
        plot.bar(edges[index], edges[index + 1], counts[index], tip)
    for row, name in enumerate(("mean", "p99")):
        if edges[first] < kld[name] < edges[last]:
            plot.upright(kld[name], f"{name} {number(kld[name], 3)}", row)
    below = source.link(number(at["below"]), "results", "figures", "histogram", "below")
    counted = source.link("counts", "results", "figures", "histogram", "counts")
    return _figure(
        plot.svg(), "KLD of each position (", counted, f"). Below {short(edges[0])}: ", below, " positions."
    )


def _positions(source: Source) -> Markup:
    rows: list[dict[str, Any]] = source.value("results", "figures", "by_position")
    top = nice_top(max(row["kld"] for row in rows))
    plot = Plot(
        "Mean KLD by position in the window",
        Axis(0, rows[-1]["last"] + 1, "position in the window"),
        Axis(0, top, "mean KLD, nats"),
    )
    points = []
    for row in rows:
        middle = (row["first"] + row["last"] + 1) / 2
        points.append((middle, row["kld"]))
        plot.dot(middle, row["kld"], f"{row['first']} to {row['last']}: {number(row['kld'])}")
    plot.line(points)
    link = source.link("by position", "results", "figures", "by_position")
    return _figure(plot.svg(), "Mean KLD ", link, ", over all windows.")


def _layers(source: Source) -> Markup:
    groups: list[dict[str, Any]] = source.value("results", "layers", "groups") or []
    groups = [group for group in groups if group["layer"] >= 0]
    if not groups:
        return Markup("")
    last = max(group["layer"] for group in groups)
    plot = Plot(
        "Relative error of the weights of each layer",
        Axis(-0.7, last + 0.7, "layer"),
        Axis(0, nice_top(max(group["error"] for group in groups)), "relative error"),
    )
    for group in groups:
        series = _series(group["kind"])
        tip = f"layer {group['layer']}, {group['kind']}, {group['format']}: {number(group['error'])}"
        plot.dot(group["layer"], group["error"], tip, series, shift=(series - 1) * 5.0)
    link = source.link("Error of the weights", "results", "layers", "groups")
    used = sorted({_series(group["kind"]) for group in groups})
    keys = [key(series, SERIES[series][0]) for series in used]
    caption = (link, " by layer and kind, Frobenius, relative to the source.", *keys)
    return _figure(plot.svg(), *caption)


def _series(kind: str) -> int:
    return next(
        index
        for index, (_, part) in enumerate(SERIES)
        if part in kind and not (index == 0 and "shared" in kind)
    )


def _suspects(source: Source) -> Markup:
    layers = source.value("results", "layers")
    if layers is None:
        return tag("p", "The weights were not compared.")
    count = source.link(number(layers["suspects"]), "results", "layers", "suspects")
    equal = source.link(number(layers["identical"]), "results", "layers", "identical")
    changed = source.link(number(layers["changed"]), "results", "layers", "changed")
    state = "bad" if layers["suspects"] else "good"
    return tag(
        "p",
        changed,
        " tensors differ from the base, ",
        equal,
        " are equal. ",
        tag("span", count, " farther off than their format explains", class_=state),
        ".",
    )


def _worst_tensors(source: Source) -> Markup:
    worst = source.value("results", "layers", "worst") or []
    if not worst:
        return Markup("")

    def row(index: int, item: dict[str, Any]) -> list[Content]:
        def at(shown: str, name: str) -> Markup:
            return source.link(shown, "results", "layers", "worst", index, name)

        short_name = item["name"].removeprefix("model.").removeprefix("language_model.")
        name = tag("span", short_name, class_="bad" if item["suspect"] else None)
        return [
            name,
            item["format"],
            at(number(item["error"]), "error"),
            at(number(item["row_ratio"], 3), "row_ratio"),
            at(number(item["worst_row"]), "worst_row"),
        ]

    rows = [row(index, item) for index, item in enumerate(worst[:WORST_TENSORS])]
    caption = "Weights farthest from their source, suspects first; a row's error is told as a multiple of "
    caption += "what encoding it again gives"
    columns = ("tensor", "format", "error", "worst row", "row")
    return table(columns, rows, caption=caption)


def _worst_positions(source: Source) -> Markup:
    worst = (source.value("results", "worst") or [])[:WORST_POSITIONS]
    if not worst or not worst[0]["kld"]:
        return Markup("")
    rows = [
        [
            source.link(number(row["kld"], 3), "results", "worst", index, "kld"),
            number(row["document"]),
            number(row["position"]),
            *(tag("code", repr(row[f"{name}_text"])) for name in ("token", "base", "candidate")),
        ]
        for index, row in enumerate(worst)
    ]
    columns = ("KLD", "document", "position", "token read", "base's first choice", "first choice here")
    return table(columns, rows, caption="Positions that changed most")
