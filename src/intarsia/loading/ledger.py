"""Keeping count of working memory, so that a budget is a refusal and never a wait."""

from collections.abc import Iterator
from contextlib import contextmanager

from intarsia.planning.errors import BudgetError


class Ledger:
    """Working memory in use: what is beside final weights. `most` is the highest so far."""

    def __init__(self, budget: int | None = None) -> None:
        self.budget = budget
        self.used = 0
        self.most = 0

    @contextmanager
    def hold(self, nbytes: int, where: str) -> Iterator[None]:
        """Counts `nbytes` while the context lasts. Raises BudgetError when that is more than the budget."""
        if self.budget is not None and self.used + nbytes > self.budget:
            raise BudgetError(
                where,
                found=f"{self.used + nbytes:,} bytes",
                expected=f"at most {self.budget:,} bytes of working memory",
                action="allow a larger budget",
            )
        self.used += nbytes
        self.most = max(self.most, self.used)
        try:
            yield
        finally:
            self.used -= nbytes
