"""HTML and SVG by construction: text is escaped unless it is markup made here."""

import html
from collections.abc import Container, Iterable, Sequence


class Markup(str):
    """Finished markup. Everything else that becomes part of a page is text, and is escaped."""

    __slots__ = ()


Content = object
_VOID = frozenset(["meta", "br"])


def text(content: Content) -> Markup:
    """Markup as it is; anything else as escaped text."""
    if isinstance(content, Markup):
        return content
    if isinstance(content, list | tuple):
        return join(content)
    return Markup(html.escape("" if content is None else str(content)))


def join(parts: Iterable[Content], between: str = "") -> Markup:
    """Parts one after another."""
    return Markup(between.join(map(text, parts)))


def tag(name: str, /, *content: Content, **attributes: object) -> Markup:
    """An element. In attribute names `_` stands for `-`, at the end for nothing; None and False leave out."""
    written = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        spelled = key.rstrip("_").replace("_", "-")
        written.append(f" {spelled}" if value is True else f' {spelled}="{html.escape(_number(value))}"')
    opened = f"<{name}{''.join(written)}>"
    return Markup(opened if name in _VOID else f"{opened}{join(content)}</{name}>")


def table(
    columns: Sequence[Content],
    rows: Iterable[Sequence[Content]],
    *,
    caption: Content = None,
    words: Container[int] = (),
) -> Markup:
    """A table whose first column names the row; on narrow screens it scrolls in its own frame. Columns of
    `words` are wrapped.
    """
    kinds = ["words" if place in words else None for place in range(len(columns))]
    named = zip(columns, kinds, strict=True)
    head = tag("tr", *(tag("th", column, scope="col", class_=kind) for column, kind in named))
    body = [
        tag(
            "tr",
            tag("th", row[0], scope="row"),
            *(tag("td", cell, class_=kind) for cell, kind in zip(row[1:], kinds[1:], strict=True)),
        )
        for row in rows
    ]
    shown = tag("p", caption, class_="caption") if caption is not None else ""
    grid = tag("table", tag("thead", head), tag("tbody", *body))
    return join([shown, tag("div", grid, class_="frame", tabindex="0")])


def key(series: object, name: Content) -> Markup:
    """A coloured square and the name of a series, for captions."""
    return tag("span", tag("span", class_=f"key key{series}"), name, class_="series")


def _number(value: object) -> str:
    """Coordinates with at most two decimals, so that a page is short and the same everywhere."""
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".") if abs(value) >= 0.005 else "0"
    return str(value)
