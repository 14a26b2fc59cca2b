"""The thinking block of a reply: where it is open, what it may cost, and when it runs in circles."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from intarsia.engine.requests import Thinking

LONGEST_PERIOD = 8
CYCLE_TOKENS = 256
WARM_UP = 64


@dataclass(slots=True)
class ThinkingState:
    """Follows a reply token by token. What it forces depends on the tokens alone, never on drafts or time."""

    rules: Thinking | None
    guard: bool
    inside: bool = False
    used: int = 0
    """Tokens inside blocks so far, markers not counted."""
    forced: tuple[int, ...] = ()
    """What must come next."""
    _runs: tuple[int, ...] = (0,) * LONGEST_PERIOD
    """For every period how many last tokens equal the one a period earlier."""
    _since_open: int = 0
    _guarded: bool = field(default=False)

    @classmethod
    def of(cls, rules: Thinking | None, guard: bool) -> "ThinkingState":
        """The state before a reply's first token."""
        state = cls(rules, guard, inside=rules is not None and rules.inside)
        state._force_if_due()
        return state

    def copy(self) -> "ThinkingState":
        """The same state, to look ahead with."""
        return replace(self)

    def push(self, token: int, before: Sequence[int]) -> bool:
        """Take a token that follows `before`; True if it is a marker."""
        rules = self.rules
        if self.forced:
            self.forced = self.forced[1:]
        if rules is None:
            return False
        if self.inside and token == rules.close_id:
            self.inside = False
            return True
        if not self.inside and token == rules.open_id:
            self.inside = True
            self._since_open = 0
            self._runs = (0,) * LONGEST_PERIOD
            self._force_if_due()
            return True
        if self.inside:
            self.used += 1
            self._since_open += 1
            self._follow_cycles(token, before)
            self._force_if_due()
        return False

    def _follow_cycles(self, token: int, before: Sequence[int]) -> None:
        if not self.guard:
            return
        reach = min(LONGEST_PERIOD, self._since_open - 1)
        self._runs = tuple(
            run + 1 if period <= reach and before[-period] == token else 0
            for period, run in enumerate(self._runs, start=1)
        )

    def _force_if_due(self) -> None:
        rules = self.rules
        if rules is None or not self.inside or self.forced or not rules.forced_close:
            return
        spent = rules.budget is not None and self.used >= rules.budget
        circling = self._since_open > WARM_UP and max(self._runs) >= CYCLE_TOKENS and not self._guarded
        if spent or circling:
            self.forced = rules.forced_close
            self._guarded |= circling
