"""Drafters that know the outcome, and where they guess wrong on purpose."""

from collections.abc import Callable, Sequence

from intarsia.engine.protocols import Pick

Mistake = Callable[[int, int], bool]
"""(step, index of the guess in the step) -> whether to guess wrong there."""


class ScriptedDrafter:
    """Guesses from the known outcome, wrong where told to: the yardstick of what drafting does to a reply.

    `truth` is the prompt and the reply of a plain run; `mistake` says where to guess another token.
    """

    def __init__(self, truth: Sequence[int], vocab_size: int, mistake: Mistake) -> None:
        self._truth = list(truth)
        self._vocab_size = vocab_size
        self._mistake = mistake
        self._step = 0

    def propose(self, tokens: Sequence[int], count: int, pick: Pick) -> list[int]:
        known = self._truth[len(tokens) : len(tokens) + count]
        step, self._step = self._step, self._step + 1
        return [
            (token + 1) % self._vocab_size if self._mistake(step, index) else token
            for index, token in enumerate(known)
        ]


def never(step: int, index: int) -> bool:
    """A `Mistake` for a drafter that is always right."""
    return False


def always(step: int, index: int) -> bool:
    """A `Mistake` for a drafter that is always wrong."""
    return True


def every_third(step: int, index: int) -> bool:
    """A `Mistake` in every third step, at guesses 0, 1, 2, 0 ... in turn: parts of a step are kept."""
    return step % 3 == 2 and index == step // 3 % 3
