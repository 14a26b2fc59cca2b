"""Refusals of the selection layer."""

from collections.abc import Sequence

from intarsia.core.errors import IntarsiaError, Violation, ViolationsError


class ManifestError(IntarsiaError):
    """A manifest file that cannot be read, has another schema, or would be overwritten."""


class SelectionError(ViolationsError):
    """A manifest that cannot be carried out exactly on this source; every reason at once."""

    def __init__(self, where: str, violations: Sequence[Violation]) -> None:
        super().__init__(where, violations)


class RecipeNameError(IntarsiaError):
    """A built-in recipe was asked for that does not exist."""
