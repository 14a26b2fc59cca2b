"""The canonical JSON of a receipt as lines that figures can point to."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from intarsia.core.receipt import Receipt, canonical
from intarsia.evidence.report.markup import Content, Markup, join, tag, text

Path = tuple[str | int, ...]


class Source:
    """One receipt in a page. Remembers which lines were pointed to, and writes itself out with anchors."""

    def __init__(self, name: str, receipt: Receipt, number: int) -> None:
        self.name = name
        self.receipt = receipt
        self.key = f"r{number}"
        self.document: dict[str, Any] = msgspec.to_builtins(receipt)
        self._lines: dict[Path, int] = {}
        _number_lines((), self.document, 0, self._lines)
        self._wanted: set[int] = set()

    def value(self, *path: str | int) -> Any:
        """The value at a path, None where there is none."""
        found: Any = self.document
        for step in path:
            if isinstance(found, Mapping):
                found = found.get(str(step))
            elif isinstance(found, Sequence) and isinstance(step, int) and step < len(found):
                found = found[step]
            else:
                return None
        return found

    def link(self, shown: Content, *path: str | int) -> Markup:
        """A figure that points to its line; plain text where the receipt has no such line."""
        line = self._lines.get(path)
        if line is None:
            return text(shown)
        self._wanted.add(line)
        return tag("a", shown, href=f"#{self.key}-{line + 1}", class_="figure")

    def listing(self) -> Markup:
        """The receipt's canonical JSON, word for word; lines that are pointed to have anchors."""
        lines = canonical(self.receipt).decode().splitlines()
        shown = [
            tag("b", line, id=f"{self.key}-{index + 1}") if index in self._wanted else text(line)
            for index, line in enumerate(lines)
        ]
        return tag("pre", join(shown, "\n"), class_="receipt")


def _number_lines(path: Path, value: Any, line: int, found: dict[Path, int]) -> int:
    """Notes the line on which each value begins in indented JSON with sorted keys; the line after it."""
    found[path] = line
    if isinstance(value, Mapping) and value:
        items: list[tuple[str | int, Any]] = sorted(value.items())
    elif isinstance(value, list) and value:
        items = list(enumerate(value))
    else:
        return line + 1
    line += 1
    for key, item in items:
        line = _number_lines((*path, key), item, line, found)
    return line + 1
