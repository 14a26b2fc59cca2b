"""What two models say about each position: divergence, likelihoods and first choices of all tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from intarsia.evidence.errors import NumbersError
from intarsia.evidence.quality.capture import Capture
from intarsia.evidence.quality.windows import Window

BLOCK_BYTES = 64 << 20
"""Of one float64 [rows, V]; six of them are in memory at once."""

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class WindowScores:
    """Of every position of a window: KLD in nats float64 [T], the two NLLs in nats float64 [T - 1] of the
    tokens that follow, and the two first choices int64 [T]."""

    kld: Numbers
    nll_base: Numbers
    nll_candidate: Numbers
    top_base: NDArray[np.int64]
    top_candidate: NDArray[np.int64]

    @property
    def agree(self) -> NDArray[np.bool_]:
        """bool [T]: the first choices are the same."""
        return np.equal(self.top_base, self.top_candidate)


def score_windows(base: Capture, candidate: Capture, windows: Sequence[Window]) -> Iterator[WindowScores]:
    """Scores window by window; logits exist for some rows at a time only. Raises NumbersError."""
    for index, window in enumerate(windows):
        targets = window.targets()
        parts = []
        for block in blocks(len(window.tokens), base.vocab_size):
            ours, theirs = base.logits(index, block), candidate.logits(index, block)
            for side, logits in (("base", ours), ("candidate", theirs)):
                if not bool(torch.isfinite(logits).all()):
                    raise NumbersError(
                        f"{side}, window {index}", found="logits that are not finite", expected="numbers"
                    )
            parts.append(compare_rows(ours, theirs, targets[block]))
        joined = [np.concatenate(column) for column in zip(*parts, strict=True)]
        yield WindowScores(joined[0], joined[1][:-1], joined[2][:-1], joined[3], joined[4])


def blocks(length: int, vocab_size: int) -> Iterator[slice]:
    """Rows of a window whose logits exist at once; equal on all ranks."""
    rows = max(16, BLOCK_BYTES // (8 * vocab_size) // 16 * 16)
    for begin in range(0, length, rows):
        yield slice(begin, min(begin + rows, length))


def help_to_score(captures: Sequence[Capture], windows: Sequence[Window]) -> None:
    """This rank's part of another rank's `score_windows`: its share of every logit, in the same order."""
    for index, window in enumerate(windows):
        for block in blocks(len(window.tokens), captures[0].vocab_size):
            for capture in captures:
                capture.logits(index, block)


def compare_rows(base: Tensor, candidate: Tensor, targets: Tensor) -> tuple[Numbers, ...]:
    """KL(base || candidate), both NLLs of `targets` and both first choices of logits [n, V].

    KL = sum_v p(v) (log p(v) - log q(v)), normalised and summed in float64. Equal logits give exactly 0.
    A target of -1 gives an NLL of 0, to be left out.
    """
    ours, theirs = _log_probabilities(base), _log_probabilities(candidate)
    kld = (ours.exp() * (ours - theirs)).sum(-1)
    known = targets.to(ours.device).clamp_min(0).unsqueeze(1)
    absent = targets.to(ours.device) < 0
    columns = (
        kld,
        -ours.gather(1, known).squeeze(1).masked_fill(absent, 0),
        -theirs.gather(1, known).squeeze(1).masked_fill(absent, 0),
        base.argmax(-1),
        candidate.argmax(-1),
    )
    return tuple(column.cpu().numpy() for column in columns)


def _log_probabilities(logits: Tensor) -> Tensor:
    wide = logits.double()
    return wide - wide.logsumexp(-1, keepdim=True)
