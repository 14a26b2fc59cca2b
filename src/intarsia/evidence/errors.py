"""Refusals of the evidence layer, one type a kind of failure."""

from collections.abc import Sequence

from intarsia.core.errors import IntarsiaError, UsageError, Violation, ViolationsError


class TextError(UsageError):
    """A text that cannot fill the windows that were asked for."""


class UnequalSourcesError(ViolationsError):
    """Two forms whose logits do not speak of the same tokens."""

    def __init__(self, violations: Sequence[Violation]) -> None:
        super().__init__("quality", violations)


class RepeatError(IntarsiaError):
    """A model that gives other numbers when it runs again: nothing can be compared with it."""


class NumbersError(IntarsiaError):
    """Logits, or results of a kernel, that are not finite."""


class IncomparableError(ViolationsError):
    """Two runs that differ in more than what is compared; every differing field."""

    def __init__(self, violations: Sequence[Violation]) -> None:
        super().__init__("bench compare", violations)


class OverlapError(IntarsiaError):
    """Streams that did not write at the same time: their speed would be of fewer."""


class ReportError(IntarsiaError):
    """A folder without receipts, or a page that is not what its receipts say."""


class TimeUpError(IntarsiaError):
    """A run that was given so many seconds, and is to begin nothing more."""
