"""What the engine is asked: one `Request` a reply.

Nothing here knows a model. Token ids, not text, go in, so that chat templates, tools and wire formats stay
outside the engine. What it answers is in `intarsia.engine.events`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import Tensor

from intarsia.core.config import LARGEST_SEED, SamplingSettings, check_integer, check_number
from intarsia.core.errors import UsageError
from intarsia.engine.sampling import seed_from

LARGEST_LOGPROBS = 20
LARGEST_CHOICES = 128
LARGEST_PRIORITY = 1 << 31
GREEDY = SamplingSettings()


class Grammar(Protocol):
    """What may follow, kept by one request. It sees the reply's tokens, but none inside a thinking block."""

    def fill(self, words: Tensor) -> None:
        """Write the mask of the next token into `words`, int32 [ceil(V / 32)].

        Bit t % 32 of word t // 32 allows token t. Where the reply may end, the end-of-text ids are allowed.
        """
        ...

    def accept(self, token: int) -> bool:
        """Take one token; False, with nothing changed, if it may not follow."""
        ...

    def rollback(self, count: int) -> None:
        """Take back the last `count` accepted tokens."""
        ...

    @property
    def finished(self) -> bool:
        """True when nothing but the end may follow."""
        ...


@dataclass(frozen=True, slots=True)
class Penalties:
    """Corrections of logits by what was already written, before temperature.

    repetition divides a positive and multiplies a negative logit of every token in the prompt or the reply;
    presence and frequency are subtracted once, and once per occurrence, for tokens in the reply.
    """

    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0

    def __post_init__(self) -> None:
        check_number("repetition_penalty", self.repetition, 0.0, 10.0, open_low=True)
        check_number("presence_penalty", self.presence, -2.0, 2.0)
        check_number("frequency_penalty", self.frequency, -2.0, 2.0)

    @property
    def any(self) -> bool:
        """True when some logit may change."""
        return (self.repetition, self.presence, self.frequency) != (1.0, 0.0, 0.0)


NO_PENALTIES = Penalties()


@dataclass(frozen=True, slots=True)
class Thinking:
    """The thinking block of a reply: how it is marked and how long it may last."""

    close_id: int
    """The token that ends the block."""
    open_id: int | None = None
    """The token that begins it, when the model writes it itself."""
    inside: bool = False
    """True when the prompt ends inside the block."""
    budget: int | None = None
    """Tokens the block may have; once they are used up `forced_close` follows, whatever the model would
    say."""
    forced_close: tuple[int, ...] = ()
    """Tokens of newline, close marker and blank line, among them `close_id`."""

    def __post_init__(self) -> None:
        if self.budget is not None:
            check_integer("thinking_budget", self.budget, 0)
        if self.forced_close and self.close_id not in self.forced_close:
            raise UsageError(
                "forced_close", found=f"{self.forced_close}", expected=f"the id {self.close_id} in it"
            )
        if self.budget is not None and not self.forced_close:
            raise UsageError(
                "thinking_budget", found="no closing tokens", expected="forced_close with a budget"
            )


@dataclass(frozen=True, slots=True)
class Request:
    """One reply to write. Checked here for what needs no model; `Engine.submit` checks the rest."""

    id: str
    tokens: tuple[int, ...]
    """The prompt."""
    sampling: SamplingSettings = GREEDY
    max_tokens: int | None = None
    """Most tokens of the reply; without a number, what the window leaves. 0 runs the prompt alone."""
    stop: tuple[str, ...] = ()
    """Strings that end the reply; not part of the text given out."""
    stop_ids: tuple[int, ...] = ()
    """Tokens that end the reply, besides the model's own end tokens."""
    ignore_eos: bool = False
    """The model's own end tokens do not end the reply (`stop_ids` do)."""
    include_stop: bool = False
    """The stop string, or the text of the stop token, is part of the text."""
    logprobs: int | None = None
    """How many alternatives to report with every token; 0 reports the token alone."""
    prompt_logprobs: int | None = None
    """The same for every prompt token; the whole prompt is then run, no kept state is used."""
    penalties: Penalties = NO_PENALTIES
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    draft: bool = True
    """False writes every token by itself. The tokens are the same."""
    priority: int = 0
    """Requests with a lower number go first."""
    thinking: Thinking | None = None
    loop_guard: bool = False
    """Close a thinking block that repeats itself exactly."""
    grammar: Grammar | None = None
    keep_at: tuple[int, ...] = ()
    """Prompt positions where a state is worth keeping: the ends of shared system text and of the rendered
    history, and the start of the last user turn. The engine rounds them down to its grid."""
    shared_at: tuple[int, ...] = ()
    """Those of `keep_at` that other conversations are likely to share, such as the end of a system block."""
    cache_salt: str | None = None
    """Kept states are only shared between requests of the same salt."""
    cache: bool = True
    """False neither uses nor keeps prompt states."""

    def __post_init__(self) -> None:
        if not self.tokens:
            raise UsageError("prompt", found="no token", expected="at least one")
        if self.max_tokens is not None:
            check_integer("max_tokens", self.max_tokens, 0)
        for name, count in (("logprobs", self.logprobs), ("prompt_logprobs", self.prompt_logprobs)):
            if count is not None:
                check_integer(name, count, 0, LARGEST_LOGPROBS)
        if any(not text for text in self.stop):
            raise UsageError("stop", found="an empty string", expected="strings of at least one character")
        for token, bias in self.logit_bias.items():
            check_integer("logit_bias", token, 0)
            check_number(f"logit_bias of {token}", bias, -100.0, 100.0)
        check_integer("priority", self.priority, -LARGEST_PRIORITY, LARGEST_PRIORITY)


def choices(request: Request, count: int, grammars: Sequence[Grammar] = ()) -> tuple[Request, ...]:
    """`count` requests for different replies to one prompt, of which the shared part is run once: those
    submitted while the first runs its prompt wait for the state it keeps.

    Choice i draws with the request's seed (or the one that follows from the prompt) plus i, modulo 2**64.
    With a grammar each choice needs its own: `grammars` holds `count` of them.
    """
    check_integer("n", count, 1, LARGEST_CHOICES)
    if count == 1 and not grammars:
        return (request,)
    if (request.grammar is not None or grammars) and len(grammars) != count:
        found = f"{len(grammars)} for {count} choices"
        raise UsageError("grammar", found=found, expected="one for each choice")
    seed = seed_from(request.tokens) if request.sampling.seed is None else request.sampling.seed
    return tuple(
        replace(
            request,
            id=f"{request.id}-{index}",
            sampling=replace(request.sampling, seed=(seed + index) % (LARGEST_SEED + 1)),
            grammar=grammars[index] if grammars else None,
        )
        for index in range(count)
    )
