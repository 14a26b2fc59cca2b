"""Refusals of the engine."""

from intarsia.core.errors import IntarsiaError


class WindowError(IntarsiaError):
    """More tokens than a stream's window holds."""


class PagesExhaustedError(IntarsiaError):
    """The pool has no free page left."""


class StepOrderError(IntarsiaError):
    """Runner calls out of order: a bug of the caller, refused before it corrupts a stream."""


class LogitsError(IntarsiaError):
    """The network gave nothing a token could be drawn from."""


class DraftError(IntarsiaError):
    """A drafter proposed more than it was asked for, or something that is no token."""


class RequestError(IntarsiaError):
    """A request that this model or engine cannot serve; `where` names the field."""


class TooLongError(RequestError):
    """A prompt, or prompt and reply together, beyond what the window or the whole pool holds."""


class QueueFullError(IntarsiaError):
    """Too many requests wait already. `retry_after` is a guess in seconds."""

    def __init__(self, waiting: int, retry_after: int) -> None:
        self.retry_after = retry_after
        super().__init__("queue", found=f"{waiting} waiting requests", action=f"try again in {retry_after} s")


class EngineClosedError(IntarsiaError):
    """The engine is draining or has ended, and takes no new request."""


class CapacityError(IntarsiaError):
    """A window, stream count or pool that does not fit the memory given; `largest` is what would fit."""

    def __init__(self, where: str, *, largest: int, found: str, expected: str, action: str) -> None:
        self.largest = largest
        super().__init__(where, found=found, expected=expected, action=action)


class GrammarError(IntarsiaError):
    """A grammar that contradicts itself: its mask allowed what it then refused."""
