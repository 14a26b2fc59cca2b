"""Plots as inline SVG: axes, and marks in data coordinates. Colours come from the page's style."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from intarsia.evidence.report.markup import Markup, tag

WIDTH, HEIGHT = 420.0, 264.0
LEFT, RIGHT, TOP, BOTTOM = 56.0, 12.0, 26.0, 42.0
LETTER = 5.6
"""Width of a letter, so that names stay inside."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Data from `low` to `high`; with `log` both are positive and steps are decades."""

    low: float
    high: float
    label: str
    log: bool = False

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high end, clipped."""
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        at = math.log10(max(value, self.low)) if self.log else value
        return min(max((at - low) / (high - low), 0.0), 1.0) if high > low else 0.5

    def ticks(self) -> list[float]:
        """Round numbers inside, about five."""
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            step = max(1, math.ceil((last - first) / 6))
            return [10.0**decade for decade in range(first, last + 1, step)]
        return round_steps(self.low, self.high)


@dataclass
class Plot:
    """A plot under construction; `title` says for screen readers what is shown."""

    title: str
    x: Axis
    y: Axis
    marks: list[Markup] = field(default_factory=list)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Data to the picture's coordinates."""
        return (
            LEFT + self.x.place(x) * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - self.y.place(y) * (HEIGHT - TOP - BOTTOM),
        )

    def bar(self, first: float, last: float, height: float, tip: str, series: int = 0) -> None:
        """A column from the low end of y."""
        left, top = self.at(first, height)
        right, bottom = self.at(last, self.y.low)
        self.marks.append(
            tag(
                "rect",
                tag("title", tip),
                x=left + 0.5,
                y=top,
                width=max(right - left - 1, 0.5),
                height=max(bottom - top, 0.0),
                class_=f"fill{series}",
            )
        )

    def line(self, points: Sequence[tuple[float, float]], series: int = 0) -> None:
        """A line through points."""
        places = " ".join(f"{x:.1f},{y:.1f}" for x, y in (self.at(*point) for point in points))
        self.marks.append(tag("polyline", points=places, class_=f"stroke{series}"))

    def dot(self, x: float, y: float, tip: str, series: int = 0, shift: float = 0.0) -> None:
        """A mark; `shift` moves it sideways in picture units, so that several stand beside each other."""
        left, top = self.at(x, y)
        self.marks.append(
            tag("circle", tag("title", tip), cx=left + shift, cy=top, r=3.2, class_=f"fill{series} mark")
        )

    def upright(self, x: float, label: str, row: int = 0) -> None:
        """A named vertical line."""
        left, _ = self.at(x, self.y.low)
        anchor = "end" if left + LETTER * len(label) > WIDTH else "start"
        self.marks.append(tag("line", x1=left, x2=left, y1=TOP, y2=HEIGHT - BOTTOM, class_="rule"))
        self.marks.append(
            tag(
                "text",
                label,
                x=left + (-3 if anchor == "end" else 3),
                y=TOP + 10 + 12 * row,
                text_anchor=anchor,
                class_="note",
            )
        )

    def svg(self) -> Markup:
        """The picture."""
        return tag(
            "svg",
            tag("title", self.title),
            *self._grid(),
            *self.marks,
            viewBox=f"0 0 {WIDTH:.0f} {HEIGHT:.0f}",
            role="img",
        )

    def _grid(self) -> list[Markup]:
        parts = []
        for value in self.y.ticks():
            _, top = self.at(self.x.low, value)
            parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=top, y2=top, class_="grid"))
            parts.append(tag("text", short(value), x=LEFT - 5, y=top + 4, text_anchor="end"))
        for value in self.x.ticks():
            left, _ = self.at(value, self.y.low)
            parts.append(tag("text", short(value), x=left, y=HEIGHT - BOTTOM + 17, text_anchor="middle"))
        bottom = HEIGHT - BOTTOM
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=bottom, y2=bottom, class_="axis"))
        middle = (LEFT + WIDTH - RIGHT) / 2
        parts.append(tag("text", self.x.label, x=middle, y=HEIGHT - 6, text_anchor="middle", class_="label"))
        parts.append(tag("text", self.y.label, x=2, y=10, class_="label"))
        return parts


def round_steps(low: float, high: float, count: int = 5) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten between two numbers."""
    if not high > low:
        return [low]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def nice_top(value: float) -> float:
    """A little above the largest value, so that nothing touches the frame."""
    return value * 1.08 if value > 0 else 1.0


def short(value: float) -> str:
    """A tick's number in few characters."""
    if value == 0:
        return "0"
    if abs(value) < 1e-3 or abs(value) >= 1e6:
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    if abs(value) >= 1000:
        return f"{value / 1000:g}k"
    return f"{value:.4g}"
