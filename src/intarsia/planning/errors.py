"""Refusals of the planning layer."""

from intarsia.core.errors import IntarsiaError


class BudgetError(IntarsiaError):
    """Converting would take more working memory than it may; it is never waited for."""
