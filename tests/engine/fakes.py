"""A runner whose logits are a hash of the whole prefix: one token wrongly kept changes them all."""

import hashlib
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from intarsia.core.config import SamplingSettings
from intarsia.engine.sampling import draw

VOCAB = 61


def logits_of(prefix: Sequence[int]) -> Tensor:
    """Normally distributed logits [VOCAB] that depend on every token of the prefix."""
    return _logits_of(tuple(prefix))


@cache
def _logits_of(prefix: tuple[int, ...]) -> Tensor:
    digest = hashlib.sha256(np.asarray(prefix, dtype="<i8").tobytes()).digest()
    random = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))
    return torch.from_numpy(random.standard_normal(VOCAB) * 3).float()


class HashRunner:
    """Follows the runner's protocol and refuses calls that break it."""

    vocab_size = VOCAB
    reused = 0

    def __init__(self, window: int = 512, noise: float = 0.5) -> None:
        self.window = window
        self.committed: list[int] = []
        self.widths: list[int] = []
        self._verified: list[int] | None = None
        self._noise = noise

    def start(self, tokens: Sequence[int]) -> Tensor:
        assert 0 < len(tokens) <= self.window
        self.committed, self._verified = list(tokens), None
        return logits_of(self.committed)

    def verify(self, tokens: Sequence[int]) -> Tensor:
        assert self._verified is None, "the last rows were not committed"
        assert tokens
        assert len(self.committed) + len(tokens) <= self.window, "rows past the window"
        self._verified = list(tokens)
        self.widths.append(len(tokens))
        return torch.stack(
            [logits_of(self.committed + self._verified[: row + 1]) for row in range(len(tokens))]
        )

    def draw(self, logits: Tensor, positions: Tensor, settings: SamplingSettings) -> Tensor:
        return draw(logits, positions, settings)

    def commit(self, count: int) -> None:
        assert self._verified is not None
        assert 1 <= count <= len(self._verified)
        self.committed += self._verified[:count]
        self._verified = None

    def draft(self, pending: int, count: int, pick) -> list[int]:
        """Like an MTP layer: the true logits, blurred, fed by its own guesses."""
        assert self._verified is None
        assert count >= 1
        prefix = [*self.committed, pending]
        for _ in range(count):
            blurred = logits_of(prefix) + self._noise * logits_of([*prefix, 0])
            prefix.append(pick(blurred, len(prefix)))
        return prefix[len(self.committed) + 1 :]
