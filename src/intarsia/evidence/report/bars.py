"""Horizontal bars with names: what is best read as a list."""

from collections.abc import Sequence
from dataclasses import dataclass

from intarsia.evidence.report.markup import Markup, tag
from intarsia.evidence.report.svg import LETTER, WIDTH, nice_top

ROW, GAP, HEAD = 14.0, 26.0, 4.0


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its length in data units, what stands behind it, and which series it belongs to. `low` and
    `high` draw a whisker, `limit` a tick that the bar may be measured by."""

    value: float
    shown: str
    series: int = 0
    low: float | None = None
    high: float | None = None
    limit: float | None = None


def bar_list(title: str, groups: Sequence[tuple[str, Sequence[Bar]]]) -> Markup:
    """Named groups of bars below each other, all to one scale."""
    values = [
        part
        for _, bars in groups
        for bar in bars
        for part in (bar.value, bar.high, bar.limit)
        if part is not None
    ]
    top = nice_top(max(values, default=0.0))
    marks: list[Markup] = []
    y = HEAD
    longest = max((len(bar.shown) for _, bars in groups for bar in bars), default=0)
    room = WIDTH - LETTER * longest - 8
    for name, bars in groups:
        marks.append(tag("text", name, x=0, y=y + 11, class_="name"))
        y += ROW + 2
        for bar in bars:
            marks += _bar(bar, y, room / top)
            y += ROW
        y += GAP - ROW
    return tag("svg", tag("title", title), *marks, viewBox=f"0 0 {WIDTH:.0f} {max(y, ROW):.0f}", role="img")


def _bar(bar: Bar, y: float, scale: float) -> list[Markup]:
    length = max(bar.value * scale, 0.6)
    parts = [
        tag(
            "rect",
            tag("title", bar.shown),
            x=0,
            y=y,
            width=length,
            height=ROW - 3,
            class_=f"fill{bar.series}",
        )
    ]
    end = length
    if bar.low is not None and bar.high is not None:
        middle = y + (ROW - 3) / 2
        end = max(end, bar.high * scale)
        parts.append(
            tag("line", x1=bar.low * scale, x2=bar.high * scale, y1=middle, y2=middle, class_="axis")
        )
    if bar.limit is not None:
        at = bar.limit * scale
        end = max(end, at)
        parts.append(tag("line", x1=at, x2=at, y1=y - 2, y2=y + ROW - 1, class_="limit"))
    parts.append(tag("text", bar.shown, x=end + 4, y=y + ROW - 4))
    return parts
