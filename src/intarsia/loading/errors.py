"""Refusals of the loading layer."""

from collections.abc import Sequence

from intarsia.core.errors import IntarsiaError, Violation, ViolationsError


class LoadError(ViolationsError):
    """A checkpoint that cannot be turned into the network's weights; every reason at once."""

    def __init__(self, where: str, violations: Sequence[Violation]) -> None:
        super().__init__(where, violations)


class ConvertError(IntarsiaError):
    """A weight that cannot be encoded, or a conversion that would overwrite its source."""


class ResumeError(IntarsiaError):
    """An unfinished export is in the way, or is not the one that is to be resumed."""


class SourceChangedError(IntarsiaError):
    """A file of the source is no longer what it was when the work began."""
