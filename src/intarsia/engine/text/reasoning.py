"""Telling a reply's thinking from its answer while it streams."""

from typing import Literal

OPENING = "<think>"
CLOSING = "</think>"
Part = Literal["thinking", "answer"]


def begins_thinking(prompt: str) -> bool:
    """True when a rendered prompt ends inside an opened block, so that the reply begins with thoughts."""
    return prompt.rstrip().endswith(OPENING)


class ReasoningSplitter:
    """Divides a reply at its markers, which are part of neither side.

    A reply thinks until `</think>` if its prompt ended in `<think>`, or if it begins with that marker itself.
    """

    def __init__(self, thinking: bool = False) -> None:
        self._thinking = thinking
        self._answered = False
        self._held = ""

    def push(self, text: str) -> list[tuple[Part, str]]:
        """Take more of the reply; return what can be told apart now."""
        self._held += text
        parts: list[tuple[Part, str]] = []
        while True:
            marker = self._marker()
            before, found, after = self._held.partition(marker) if marker else (self._held, "", "")
            if not found:
                keep = _beginning_at_end(self._held, marker)
                self._show(parts, self._held[: len(self._held) - keep])
                self._held = self._held[len(self._held) - keep :]
                return parts
            self._show(parts, before)
            self._thinking, self._held = not self._thinking, after
            self._answered = self._answered or not self._thinking

    def finish(self) -> list[tuple[Part, str]]:
        """The reply ends here; return what was waiting for the rest of a marker."""
        parts: list[tuple[Part, str]] = []
        self._show(parts, self._held)
        self._held = ""
        return parts

    def _marker(self) -> str:
        """What ends the present part: an answer that has begun never turns into thinking again."""
        if self._thinking:
            return CLOSING
        opens = not self._answered and OPENING.startswith(self._held.lstrip()[: len(OPENING)])
        return OPENING if opens else ""

    def _show(self, parts: list[tuple[Part, str]], text: str) -> None:
        if text:
            self._answered = self._answered or (not self._thinking and not text.isspace())
            parts.append(("thinking" if self._thinking else "answer", text))


def _beginning_at_end(text: str, marker: str) -> int:
    """Length of the longest end of `text` that begins `marker`."""
    return next((n for n in range(min(len(text), len(marker) - 1), 0, -1) if text.endswith(marker[:n])), 0)
