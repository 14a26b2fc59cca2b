"""Refusals and failures of ranks that work together."""

from collections.abc import Sequence

from intarsia.core.errors import IntarsiaError, Violation, ViolationsError


class RanksDifferError(ViolationsError):
    """Ranks were started with different settings, versions, checkpoints or plans; every difference."""

    def __init__(self, where: str, violations: Sequence[Violation]) -> None:
        super().__init__(where, violations)


class RankMissingError(IntarsiaError):
    """A rank did not come in time."""


class RankLostError(IntarsiaError):
    """A rank died, hangs, or the line to it broke."""


class RanksDivergedError(IntarsiaError):
    """Ranks that should do the same step do different ones."""


class RendezvousError(IntarsiaError):
    """The ranks' meeting point cannot be opened or reached."""
