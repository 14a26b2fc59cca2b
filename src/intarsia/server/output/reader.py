"""One reply as it grows: the engine's events in, parts of a message out."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from intarsia.engine.events import Event, Finished, PromptLogprobs, TokenLogprob, Tokens
from intarsia.engine.requests import Request
from intarsia.server.output.reasoning import ReplyParts
from intarsia.server.output.tool_calls import ToolCall, ToolCallParser
from intarsia.server.translate.plan import Telling


@dataclass(slots=True)
class Part:
    """What several events add to a reply."""

    reasoning: str = ""
    content: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.reasoning or self.content or self.calls or self.logprobs or self.ids)

    def add(self, other: "Part") -> None:
        """Append what came later."""
        self.reasoning += other.reasoning
        self.content += other.content
        self.calls += other.calls
        self.logprobs += other.logprobs
        self.ids += other.ids


class ReplyReader:
    """Follows one reply from its first event to its last."""

    def __init__(self, request: Request, telling: Telling, *, chat: bool) -> None:
        self.request = request
        self.finished: Finished | None = None
        self.prompt_logprobs: PromptLogprobs | None = None
        self._telling = telling
        self._parts = ReplyParts(inside=telling.inside_thinking) if chat and telling.thinks else None
        self._calls = ToolCallParser(telling.tools) if telling.tools else None
        self._waiting: list[TokenLogprob] = []

    @property
    def satisfied(self) -> bool:
        """True when all the client allowed has been said: one tool call, where only one may be made."""
        return self._calls is not None and not self._telling.several_calls and self._calls.calls > 0

    def take(self, events: Iterable[Event]) -> Part:
        """What these events add. Probabilities of tokens whose text still waits come with that text."""
        part = Part()
        for event in events:
            if isinstance(event, PromptLogprobs):
                self.prompt_logprobs = event
            elif isinstance(event, Tokens):
                self._take_text(event.text, part)
                self._waiting += event.logprobs
                part.ids += event.ids
            elif self.finished is None:
                self.finished = event
                self._end(event, part)
        if part.reasoning or part.content or part.calls or self.finished is not None:
            part.logprobs, self._waiting = self._waiting, []
        return part

    def finish_reason(self) -> str | None:
        """OpenAI's word for why the reply ended; None while it goes on, or if it failed."""
        if self.finished is None or self.finished.reason == "error":
            return None
        called = self._calls is not None and self._calls.calls > 0
        if called and (self.finished.reason == "stop" or self.satisfied):
            return "tool_calls"
        return "length" if self.finished.reason == "length" else "stop"

    def ending(self) -> str:
        """Why the reply ended, for the log: the client's word for it, or "error", or "cancelled"."""
        if self.finished is None or (self.finished.reason == "cancelled" and not self.satisfied):
            return "cancelled"
        return self.finish_reason() or "error"

    def stop_reason(self) -> str | int | None:
        """The client's own stop string or id that ended the reply."""
        matched = self.finished.matched if self.finished is not None else None
        return matched if isinstance(matched, str) or matched in self.request.stop_ids else None

    def _end(self, event: Finished, part: Part) -> None:
        reasoning, content = self._parts.finish() if self._parts is not None else ("", "")
        part.reasoning += reasoning
        self._take_content(content, part)
        if self._calls is not None and not self.satisfied:
            self._sort(self._calls.finish(cut=event.reason != "stop"), part)

    def _take_text(self, text: str, part: Part) -> None:
        reasoning, content = self._parts.push(text) if self._parts is not None else ("", text)
        part.reasoning += reasoning
        self._take_content(content, part)

    def _take_content(self, content: str, part: Part) -> None:
        if self._calls is None:
            part.content += content
        elif content and not self.satisfied:
            self._sort(self._calls.push(content), part)

    def _sort(self, pieces: list[str | ToolCall], part: Part) -> None:
        for piece in pieces:
            if isinstance(piece, str):
                part.content += piece
            else:
                part.calls.append(piece)
                if not self._telling.several_calls:
                    return
