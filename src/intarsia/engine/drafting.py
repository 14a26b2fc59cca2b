"""Drafters, and how far ahead they guess."""

from collections.abc import Sequence
from typing import Final

from intarsia.core.errors import UsageError
from intarsia.engine.protocols import Pick, Runner


class NoDrafts:
    """Guesses nothing: every token is computed by a step of its own."""

    def propose(self, tokens: Sequence[int], count: int, pick: Pick) -> list[int]:
        return []


class MtpDrafter:
    """Guesses with the model's own MTP layer, each guess fed by the one before.

    Guesses are drawn by the same keyed rule as the tokens they stand for, so a sampled reply is guessed as
    well as a greedy one: both draws see the same noise.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner

    def propose(self, tokens: Sequence[int], count: int, pick: Pick) -> list[int]:
        return self._runner.draft(tokens[-1], count, pick)


class FixedDepth:
    """The same number of guesses in every step."""

    def __init__(self, count: int) -> None:
        if count < 0:
            raise UsageError("drafts", found=str(count), expected="0 or more")
        self._count = count

    def depth(self) -> int:
        return self._count

    def record(self, drafted: int, accepted: int) -> None:
        pass


class AdaptiveDepth:
    """As many guesses as are worth it, between 1 and `most`, judged place by place.

    A place in the step is worth its row while the share of recent steps in which its guess landed is at least
    `WORTH`. A place that was given up is tried again after `PAUSE` steps, for a few steps.
    """

    WORTH: Final = 0.4
    MEMORY: Final = 8
    """Steps over which the share is averaged (exponentially)."""
    TRIAL: Final = 0.5
    """The share a place begins with: two misses in a row end a trial."""
    PAUSE: Final = 64

    def __init__(self, most: int) -> None:
        if most < 1:
            raise UsageError("drafts", found=str(most), expected="1 or more")
        self._shares = [self.TRIAL] * most
        self._paused = 0

    def depth(self) -> int:
        poor = (place for place, share in enumerate(self._shares) if share < self.WORTH)
        return max(1, next(poor, len(self._shares)))

    def record(self, drafted: int, accepted: int) -> None:
        depth = self.depth()
        for place in range(min(drafted, len(self._shares))):
            self._shares[place] += ((place < accepted) - self._shares[place]) / self.MEMORY
        if drafted == 0 or depth == len(self._shares):
            return
        self._paused = self._paused + 1 if self.depth() == depth else 0
        if self._paused >= self.PAUSE:
            self._shares[depth] = self.TRIAL
            self._paused = 0
