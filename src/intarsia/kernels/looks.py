"""Where the host looks at values of a device.

A step can be captured as a CUDA graph when nobody looks. A CPU reference may; it says so here, so that what
stands against capturing is known from one run beforehand, and by name.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_SEEN: ContextVar[dict[str, None] | None] = ContextVar("looks", default=None)


def look(what: str) -> None:
    """Say that the host is about to read `what` from the device."""
    seen = _SEEN.get()
    if seen is not None:
        seen[what] = None


@contextmanager
def looks() -> Iterator[dict[str, None]]:
    """What the host looks at inside the block, each once, in the order of the first look."""
    seen: dict[str, None] = {}
    token = _SEEN.set(seen)
    try:
        yield seen
    finally:
        _SEEN.reset(token)
