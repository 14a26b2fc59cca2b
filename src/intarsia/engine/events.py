"""What the engine answers: events, usage, the caller's handle, and what a server needs of an engine."""

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from intarsia.engine.requests import Request

LOG = logging.getLogger(__name__)
FinishReason = Literal["stop", "length", "cancelled", "error"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural logarithms of the network's own probabilities: before penalties, bias, masks and
    temperature."""

    id: int
    logprob: float
    rank: int
    """1 for the likeliest token."""
    top: tuple[tuple[int, float], ...]
    """The likeliest ids with their logprobs, as many as were asked for."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a request took. Times are seconds of a monotonic clock, tokens are counted once."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Prompt tokens that a kept state stood for."""
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    """Of those, the ones inside a thinking block, its markers included."""
    cache_reason: str = ""
    """Why the prompt was reused as far as it was, in one sentence."""
    drafted: tuple[int, ...] = ()
    """Drafts verified, by their place in the chain."""
    accepted: tuple[int, ...] = ()
    """Drafts kept, by their place in the chain."""
    copied: int = 0
    """Drafts that were copied from earlier text, of all drafts verified."""
    copied_accepted: int = 0
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Tokens:
    """The next tokens of a reply. `text` may lag behind `ids` while it could still become a stop string;
    the last of it may come without ids."""

    ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    """One a token if they were asked for."""
    thinking: bool = False
    """True inside a thinking block; its markers come in events of their own, with this set too."""


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """One entry a prompt token, None for the first. Sent before the first `Tokens`."""

    entries: tuple[TokenLogprob | None, ...]


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of every request."""

    reason: FinishReason
    usage: Usage
    error: str | None = None
    matched: str | int | None = None
    """The stop string or id that ended the reply."""


Event = Tokens | PromptLogprobs | Finished
OnEvent = Callable[[Event], None]


@dataclass(eq=False)
class Handle:
    """The caller's end of a request. Events come in order, the last one is `Finished`."""

    request: Request
    on_event: OnEvent | None = None
    """Called in the engine's thread instead of queueing; must return at once. Raising cancels the request."""
    _events: "queue.SimpleQueue[Event]" = field(default_factory=queue.SimpleQueue)
    _cancelled: threading.Event = field(default_factory=threading.Event)
    _wake: Callable[[], None] | None = None

    def cancel(self) -> None:
        """End the request between two steps; `Finished` with the reason "cancelled" follows. Repeatable."""
        self._cancelled.set()
        if self._wake is not None:
            self._wake()

    @property
    def cancelled(self) -> bool:
        """True once `cancel` was called."""
        return self._cancelled.is_set()

    def events(self) -> Iterator[Event]:
        """Wait for events until `Finished`. Only without `on_event`, and for one reader."""
        while True:
            event = self._events.get()
            yield event
            if isinstance(event, Finished):
                return

    def deliver(self, event: Event) -> None:
        """Hand an event over; for the engine."""
        if self.on_event is None:
            self._events.put(event)
            return
        try:
            self.on_event(event)
        except Exception:
            # A reader that fails is a reader that left; its request must not take the engine along.
            LOG.warning("the reader of request %s failed; the request ends", self.request.id, exc_info=True)
            self._cancelled.set()


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters since the start, and gauges of now. Whole numbers unless named seconds."""

    running: int = 0
    waiting: int = 0
    streams: int = 0
    """Streams that can run at once."""
    window: int = 0
    pages: int = 0
    pages_free: int = 0
    page_tokens: int = 0
    kept_states: int = 0
    kept_bytes: int = 0
    kept_budget: int = 0
    kept_hits: int = 0
    kept_misses: int = 0
    kept_evicted: int = 0
    kept_refused: int = 0
    requests_finished: Mapping[str, int] = field(default_factory=dict)
    """By reason."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    steps: int = 0
    drafted: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()
    copied: int = 0
    copied_accepted: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    waiting_for: str = ""
    """What admission is waiting for, empty when nothing waits."""
    step_age_seconds: float = 0.0
    """How long the step in progress has run; 0 between steps. For a watchdog."""
    step_streams: tuple[str, ...] = ()
    """Ids of the requests in the step in progress."""


class EngineLike(Protocol):
    """What a server needs of an engine."""

    @property
    def window(self) -> int:
        """Most tokens of prompt and reply together."""
        ...

    @property
    def alive(self) -> bool:
        """True while requests are taken."""
        ...

    def submit(self, request: Request, on_event: OnEvent | None = None) -> Handle:
        """Queue a request; from any thread.

        Raises RequestError (a field the model cannot serve, such as an id outside the vocabulary),
        TooLongError (more tokens than the window or the pool holds), QueueFullError (try again later) and
        EngineClosedError (draining or closed); all are in `intarsia.engine.errors`.
        """
        ...

    def stats(self) -> EngineStats:
        """A snapshot; from any thread."""
        ...

    def close(self, *, drain: bool = True, timeout: float | None = None) -> None:
        """Refuse new requests; finish the running and queued ones first if `drain`, else cancel them.

        Returns when the engine's thread has ended or `timeout` seconds are over; a second call with `drain`
        false ends a drain.
        """
        ...
