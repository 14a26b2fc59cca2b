"""Reasoning apart from content, without the white space around the marks of the thinking block."""

from intarsia.engine.text.reasoning import Part, ReasoningSplitter
from intarsia.server.output.markers import trailing_space


class ReplyParts:
    """Divides a reply's text into reasoning and content while it grows.

    White space at both ends of the reasoning, and between it and the content, belongs to neither. The parts
    do not depend on how the text is divided into pushes.
    """

    def __init__(self, *, inside: bool) -> None:
        """`inside`: the prompt already ends inside the thinking block."""
        self._splitter = ReasoningSplitter(inside)
        self._thought = inside
        self._reasoned = False
        self._answered = False
        self._space = ""

    def push(self, text: str) -> tuple[str, str]:
        """Take more text; the reasoning and the content that are certain now."""
        return self._sort(self._splitter.push(text))

    def finish(self) -> tuple[str, str]:
        """The reply ends here: what was held back."""
        reasoning, content = self._sort(self._splitter.finish())
        if not self._thought and not self._answered:
            content += self._space
        return reasoning, content

    def _sort(self, parts: list[tuple[Part, str]]) -> tuple[str, str]:
        reasoning = content = ""
        for part, text in parts:
            if part == "thinking":
                reasoning += self._trim_thought(text)
            else:
                content += self._trim_answer(text)
        return reasoning, content

    def _trim_thought(self, text: str) -> str:
        if not self._thought:
            self._thought, self._space = True, ""
        text = self._space + text
        if not self._reasoned:
            text = text.lstrip()
        keep = trailing_space(text)
        shown, self._space = text[: len(text) - keep], text[len(text) - keep :]
        self._reasoned = self._reasoned or bool(shown)
        return shown

    def _trim_answer(self, text: str) -> str:
        """White space at the beginning waits: a thinking block may still follow it, or have gone before."""
        if self._answered:
            return text
        if self._thought:
            text = text.lstrip()
        elif not text.strip():
            self._space += text
            return ""
        else:
            text, self._space = self._space + text, ""
        self._answered = bool(text)
        return text
