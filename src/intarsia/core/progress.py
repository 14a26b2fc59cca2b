"""Telling somebody how far a long task is: what library code calls, and the form that says nothing."""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Phase(Protocol):
    """One part of a task, such as reading."""

    def advance(self, count: int) -> None:
        """`count` more units (bytes, mostly) are done."""


class Progress(Protocol):
    """Where phases are announced."""

    def phase(self, name: str, total: int, unit: str = "bytes") -> AbstractContextManager[Phase]:
        """A phase of `total` units; it is over when the context ends."""


class _SilentPhase:
    def advance(self, count: int) -> None:
        pass


class _Silent:
    def phase(self, name: str, total: int, unit: str = "bytes") -> AbstractContextManager[Phase]:
        return nullcontext(_SilentPhase())


SILENT: Progress = _Silent()
"""The default of every library function: says nothing."""
