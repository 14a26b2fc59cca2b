"""One request from its prompt to its end: what was drawn, what may still come, why it ended.

It knows no network and no schedule, so that a loop over one stream and one over many can share it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

from intarsia.core.config import GenerationSettings
from intarsia.core.errors import UsageError
from intarsia.engine.errors import WindowError
from intarsia.engine.text.reply import ReplyText

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Delta:
    """What a step added. Text comes later than its tokens where a character or stop string is incomplete."""

    tokens: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds measured for a reply; they take no part in comparing results."""

    prompt: float
    """Until the first token was drawn."""
    decode: float
    """For all further tokens."""


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A finished reply."""

    prompt_tokens: int
    reused: int
    """Prompt tokens that did not have to run again."""
    tokens: tuple[int, ...]
    """All tokens drawn, a stop token included."""
    text: str
    """Their text, before any stop string and without control tokens."""
    finish_reason: FinishReason
    stopped_by: int | str | None
    """The token or string that ended the reply."""
    steps: int
    """Passes over the network after the prompt's."""
    drafted: tuple[int, ...]
    """How often a token was guessed, by its place in the step."""
    accepted: tuple[int, ...]
    """How often that guess was the token drawn."""
    timing: Timing = field(compare=False)


def check_fits(prompt_tokens: int, window: int) -> None:
    """Raise `WindowError` unless the window has room for the prompt and one token more."""
    if prompt_tokens >= window:
        raise WindowError(
            "prompt",
            found=f"{prompt_tokens} tokens",
            expected=f"at most {window - 1} in a window of {window}",
            action="shorten the prompt or use a larger window",
        )


class Stream:
    """The state of a request. Tokens are appended by `take`; `pending` is the last, not yet run one."""

    def __init__(
        self,
        prompt: Sequence[int],
        settings: GenerationSettings,
        *,
        vocab_size: int,
        window: int,
        stop_tokens: Collection[int] = (),
        text: ReplyText | None = None,
    ) -> None:
        """Check the request.

        Raises `UsageError` for a token outside the vocabulary, and `WindowError` when the prompt and a first
        token do not fit.
        """
        if not prompt:
            raise UsageError("prompt", found="no token", expected="at least one")
        for token in prompt:
            if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
                raise UsageError("prompt", found=f"token {token!r}", expected=f"ids below {vocab_size}")
        check_fits(len(prompt), window)
        if settings.stop and text is None:
            raise UsageError("stop", found="stop strings", action="generate with the checkpoint's tokenizer")
        self.tokens = list(prompt)
        self.prompt_tokens = len(prompt)
        self.settings = settings
        self.finish_reason: FinishReason | None = None
        self.stopped_by: int | str | None = None
        self._limit = min(len(prompt) + settings.max_tokens, window)
        self._stop_tokens = frozenset() if settings.ignore_eos else frozenset(stop_tokens)
        self._text = text
        self._shown: list[str] = []

    @property
    def pending(self) -> int:
        """The last token; it stands at position len(tokens) - 1 and has not been run."""
        return self.tokens[-1]

    @property
    def room(self) -> int:
        """How many more tokens may be drawn; a step may guess one fewer."""
        return self._limit - len(self.tokens)

    @property
    def reply(self) -> tuple[int, ...]:
        """The tokens drawn so far."""
        return tuple(self.tokens[self.prompt_tokens :])

    @property
    def text(self) -> str:
        """The reply's text shown so far."""
        return "".join(self._shown)

    def take(self, drawn: Sequence[int]) -> Delta:
        """Append tokens in order until one ends the reply; those after it are not taken."""
        taken, shown = [], []
        for token in drawn:
            self.tokens.append(token)
            taken.append(token)
            shown.append(self._end_or_text(token))
            if self.finish_reason is not None:
                break
        text = "".join(shown)
        self._shown.append(text)
        return Delta(tuple(taken), text)

    def _end_or_text(self, token: int) -> str:
        if token in self._stop_tokens:
            return self._finish("stop", token)
        text = "" if self._text is None else self._text.push(token)
        if self._text is not None and self._text.stopped_by is not None:
            return text + self._finish("stop", self._text.stopped_by)
        return text + self._finish("length", None) if self.room == 0 else text

    def _finish(self, reason: FinishReason, stopped_by: int | str | None) -> str:
        self.finish_reason, self.stopped_by = reason, stopped_by
        rest = "" if self._text is None else self._text.finish()
        if self._text is not None and self._text.stopped_by is not None and stopped_by is None:
            # bytes that were waiting for the rest of a character completed a stop string
            self.finish_reason, self.stopped_by = "stop", self._text.stopped_by
        return rest
