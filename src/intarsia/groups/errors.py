"""Refusals and failures of ranks that work together."""

import re
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


class LineError(RuntimeError):
    """What carries messages between ranks failed; `culprit` is the rank to blame, if that is known.

    `states` says what every rank was doing. Becomes a RankLostError where a call ends by it.
    """

    def __init__(self, text: str, culprit: int | None = None, states: str = "") -> None:
        super().__init__(text)
        self.culprit = culprit
        self.states = states


def plain_words(problem: RuntimeError) -> str:
    """The first line of an error, without the source line and the advice that gloo puts around it."""
    text = str(problem).strip()
    if not text:
        return "no reason given"
    line = text.splitlines()[0].partition(" This is typically")[0]
    return re.sub(r"^\[[^\]]*\.(?:cc|cpp|h):\d+\] ", "", line).rstrip(".")


def lost(problem: RuntimeError, rank: int, ranks: int) -> RankLostError:
    """The error of a rank whose exchange, or wait, failed so."""
    words = plain_words(problem)[:300]
    culprit = problem.culprit if isinstance(problem, LineError) else None
    states = problem.states if isinstance(problem, LineError) else ""
    return RankLostError(
        f"rank {rank} of {ranks}" if culprit is None else f"rank {culprit}",
        found=f"an exchange that failed: {words}" if culprit is None else words,
        expected="every rank at the same exchange",
        action=states or "look for the first message of another rank",
    )
