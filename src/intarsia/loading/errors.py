"""Refusals of the loading layer."""

from collections.abc import Sequence

from intarsia.core.errors import IntarsiaError, Violation, ViolationsError


class LoadError(ViolationsError):
    """A checkpoint that cannot be turned into the network's weights; every reason at once."""

    def __init__(self, where: str, violations: Sequence[Violation]) -> None:
        super().__init__(where, violations)


class ConvertError(IntarsiaError):
    """A weight that cannot be encoded, or a conversion that would overwrite its source."""
