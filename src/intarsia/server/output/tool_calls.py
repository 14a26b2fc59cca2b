"""Tool calls apart from content, while the text is still growing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from intarsia.server.output.arguments import ArgumentError, as_json, typed
from intarsia.server.output.call_scanner import CallScanner
from intarsia.server.output.markers import CALL, trailing_space, unfinished


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A whole call: an offered tool with arguments of the types its schema asks for, as JSON."""

    name: str
    arguments: str


Piece = str | ToolCall


class ToolCallParser:
    """Divides content into text and tool calls.

    A call is given out when it is complete and fits an offered tool; anything else that looks like a call
    stays text, and so does a call that the reply's limit cut off. White space around calls is dropped.
    """

    def __init__(self, schemas: Mapping[str, Mapping[str, Any]]) -> None:
        """`schemas`: name of each offered tool -> the JSON schema of its arguments."""
        self._schemas = schemas
        # Text that may still be the beginning of a call's mark, or white space that a call would swallow.
        self._held = ""
        self._after_call = False
        self._scanner: CallScanner | None = None
        self.calls = 0

    def push(self, content: str) -> list[Piece]:
        """Take more content; the pieces that are certain now."""
        pieces: list[Piece] = []
        pending = content
        while pending:
            scanner = self._scanner
            if scanner is None:
                pending = self._read_text(pending, pieces)
                continue
            scanner.push(pending)
            pending = scanner.rest if scanner.done else ""
            if scanner.done:
                self._settle(scanner, pieces)
        return pieces

    def finish(self, *, cut: bool) -> list[Piece]:
        """The reply ends here; `cut`: by a limit and not by the model."""
        pieces: list[Piece] = []
        scanner = self._scanner
        if scanner is None:
            self._give(self._held if not self._after_call else self._held.lstrip(), pieces)
        elif not cut and scanner.close():
            self._settle(scanner, pieces)
        else:
            self._give(self._held + CALL + scanner.text, pieces)
        return pieces

    def _read_text(self, content: str, pieces: list[Piece]) -> str:
        """Pass on text before the next call; returns the content behind that call's mark."""
        held = self._held + content
        if self._after_call:
            held = held.lstrip()
        before, mark, after = held.partition(CALL)
        if mark:
            self._scanner = CallScanner()
            keep = trailing_space(before)
        else:
            keep = unfinished(before, (CALL,))
            keep += trailing_space(before[: len(before) - keep])
        self._give(before[: len(before) - keep], pieces)
        self._held = before[len(before) - keep :]
        return after

    def _settle(self, scanner: CallScanner, pieces: list[Piece]) -> None:
        """A call is over: give it out, or its text."""
        self._scanner = None
        call = self._call(scanner)
        if call is None:
            self._give(self._held + CALL + scanner.text, pieces)
        else:
            pieces.append(call)
            self.calls += 1
            self._after_call = True
        self._held = ""

    def _give(self, text: str, pieces: list[Piece]) -> None:
        if text:
            self._after_call = False
            pieces.append(text)

    def _call(self, scanner: CallScanner) -> ToolCall | None:
        schema = self._schemas.get(scanner.name)
        keys = [key for key, _ in scanner.arguments]
        if scanner.broken or schema is None or len(set(keys)) != len(keys):
            return None
        properties = schema.get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        try:
            arguments = {key: typed(key, raw, known.get(key), schema) for key, raw in scanner.arguments}
        except ArgumentError:
            return None
        return ToolCall(scanner.name, as_json(arguments))
