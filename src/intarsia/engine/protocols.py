"""What the generation loop asks of a network and of a drafter."""

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from intarsia.core.config import SamplingSettings

Pick = Callable[[Tensor, int], int]
"""Chooses the token at a position from its logits [V]."""


class Runner(Protocol):
    """One stream of a network. `engine.runner.ModelRunner` is the real one.

    Rows are verified, then committed: `verify` computes rows after the committed ones, `commit` keeps the
    first few of them and forgets the others, as if they had never been computed.
    """

    vocab_size: int
    window: int
    """Most tokens the stream can hold."""

    @property
    def reused(self) -> int:
        """Tokens of the last prompt that did not have to run again."""
        ...

    def start(self, tokens: Sequence[int]) -> Tensor:
        """Begin a new stream with a prompt; logits float32 [V] of its last row."""
        ...

    def verify(self, tokens: Sequence[int]) -> Tensor:
        """Logits float32 [n, V] of n rows after the committed ones, each bit-equal to the row run alone."""
        ...

    def draw(self, logits: Tensor, positions: Tensor, settings: SamplingSettings) -> Tensor:
        """Draw a token for each row of such logits, which may be a part of the vocabulary; int64 [n]."""
        ...

    def commit(self, count: int) -> None:
        """Keep the first `count` of the verified rows."""
        ...

    def draft(self, pending: int, count: int, pick: Pick) -> list[int]:
        """Guess up to `count` tokens after `pending`, which follows the committed rows, by the MTP layer.

        `pick(logits [V], position)` chooses each guess.
        """
        ...


class Drafter(Protocol):
    """Guesses what comes next. Whatever it says, the reply keeps its tokens, only their pace changes."""

    def propose(self, tokens: Sequence[int], count: int, pick: Pick) -> list[int]:
        """Up to `count` tokens that may follow `tokens` (the prompt and the reply so far)."""
        ...


class DraftDepth(Protocol):
    """Decides how many tokens to guess, from what became of earlier guesses, never from a clock.

    Ranks of one model each hold their own and stay in step because they see the same tokens.
    """

    def depth(self) -> int:
        """How many tokens to guess in the next step."""
        ...

    def record(self, drafted: int, accepted: int) -> None:
        """Learn the outcome of a step."""
        ...
