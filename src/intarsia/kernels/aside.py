"""Work of a captured step that runs beside other work of it: a second branch of the graph.

Kernels of few rows leave most of a GPU idle, and often wait for each other only because they were launched in
turn. Where nobody allows it everything runs in its order.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor

_MOST_ROWS = 32
"""More rows keep a GPU busy, and branches only take from each other."""


@dataclass(slots=True)
class _Side:
    stream: torch.cuda.Stream | None = None
    open: bool = False
    kept: list[Tensor] = field(default_factory=list)


_SIDE: ContextVar[_Side | None] = ContextVar("branch of what is captured", default=None)
_FORBIDDEN: ContextVar[bool] = ContextVar("branches forbidden", default=False)


def fork(like: Tensor) -> torch.cuda.Event | None:
    """Where a later `aside` may begin: after all that was launched before this. None where `branches` is
    false: nothing runs aside there.

    Between the two nothing may be let go that an earlier block allocated: the later one may write there while
    what was launched in between still reads.
    """
    return torch.cuda.current_stream(like.device).record_event() if branches(like) else None


@contextmanager
def aside(like: Tensor, *read: Tensor, since: torch.cuda.Event | None = None) -> Iterator[None]:
    """Launches inside the block need not be over when those after it begin, up to `join`.

    They come after everything that was launched before, or before `since` (see `fork`). Memory that they
    read must not be handed out again until then: `read` is held so long, for tensors that their owner lets
    go earlier. One block may follow another before they are joined.
    """
    side = _SIDE.get()
    if side is None or not branches(like):
        yield
        return
    if side.stream is None:
        side.stream = torch.cuda.Stream(like.device)  # type: ignore[no-untyped-call]
    if since is None:
        side.stream.wait_stream(torch.cuda.current_stream(like.device))
    else:
        side.stream.wait_event(since)
    side.open = True
    side.kept += read
    with torch.cuda.stream(side.stream):
        yield


def join(like: Tensor) -> None:
    """What is launched from here on comes after all that was launched aside."""
    side = _SIDE.get()
    if side is None or side.stream is None or not side.open:
        return
    main = torch.cuda.current_stream(like.device)
    if main != side.stream:
        main.wait_stream(side.stream)
        side.open = False
        side.kept.clear()


@contextmanager
def allowed() -> Iterator[None]:
    """Lets what is captured inside the block branch, on one device."""
    token = _SIDE.set(_Side())
    try:
        yield
    finally:
        _SIDE.reset(token)


@contextmanager
def in_order() -> Iterator[None]:
    """Inside the block nothing runs aside, whoever allows it."""
    token = _FORBIDDEN.set(True)
    try:
        yield
    finally:
        _FORBIDDEN.reset(token)


def branches(like: Tensor) -> bool:
    """Whether `aside` opens a branch here for a step of as many rows as `like` has, rather than running
    everything in its order."""
    side = _SIDE.get()
    if side is None or _FORBIDDEN.get() or not like.is_cuda or len(like) > _MOST_ROWS:
        return False
    if not torch.cuda.is_current_stream_capturing():
        return False
    return side.stream is None or torch.cuda.current_stream(like.device) != side.stream
