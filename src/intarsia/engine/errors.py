"""Refusals of the engine."""

from intarsia.core.errors import IntarsiaError


class WindowError(IntarsiaError):
    """More tokens than a stream's window holds."""


class PagesExhaustedError(IntarsiaError):
    """The pool has no free page left."""


class StepOrderError(IntarsiaError):
    """Runner calls out of order: a bug of the caller, refused before it corrupts a stream."""
