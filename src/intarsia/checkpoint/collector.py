"""Keeping the garbage collector out of the way while many long-lived objects are made."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """No collections inside: they would walk hundreds of thousands of live entries over and over.

    Only around code that keeps what it allocates, since cycles are not freed meanwhile.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
