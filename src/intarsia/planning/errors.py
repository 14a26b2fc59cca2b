"""Refusals of the planning layer."""

from collections.abc import Sequence

from intarsia.core.errors import IntarsiaError, Violation, ViolationsError


class PlanError(ViolationsError):
    """A plan that cannot be carried out; every reason at once."""

    def __init__(self, where: str, violations: Sequence[Violation]) -> None:
        super().__init__(where, violations)


class BudgetError(IntarsiaError):
    """Converting would take more working memory than it may; it is never waited for."""
