"""Baselines from counts: an interpolated Kneser-Ney model, and the most frequent third token after two."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Level:
    """N-grams of one order: sorted packed keys with their counts, and the same per context."""

    keys: Tensor
    counts: Tensor
    contexts: Tensor
    totals: Tensor
    followers: Tensor
    discount: float


def pack(tokens: Tensor, order: int, vocab: int) -> Tensor:
    """Every run of `order` tokens as one integer, first token most significant."""
    count = len(tokens) - order + 1
    key = torch.zeros(count, dtype=torch.int64, device=tokens.device)
    for i in range(order):
        key = key * vocab + tokens[i : i + count]
    return key


def find(sorted_keys: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """(position, whether present) of each wanted key."""
    at = torch.searchsorted(sorted_keys, wanted.contiguous()).clamp(max=len(sorted_keys) - 1)
    return at, sorted_keys[at] == wanted


class KneserNey:
    """Interpolated Kneser-Ney: one absolute discount an order, continuation counts below the highest.

    Every order's probabilities sum to one over the vocabulary; the lowest falls back to the uniform
    distribution.
    Chen and Goodman, "An empirical study of smoothing techniques for language modeling" (1998).
    """

    def __init__(self, tokens: Tensor, order: int, vocab: int) -> None:
        if vocab**order >= 2**63:
            raise ValueError("the packed keys would not fit 63 bits")
        self.order, self.vocab = order, vocab
        self.levels: list[Level] = []
        keys, counts = torch.unique(pack(tokens, order, vocab), return_counts=True)
        for n in range(order, 0, -1):
            self.levels.append(self._level(keys, counts))
            if n > 1:
                keys, counts = torch.unique(keys % vocab ** (n - 1), return_counts=True)

    def _level(self, keys: Tensor, counts: Tensor) -> Level:
        contexts, inverse, followers = torch.unique_consecutive(
            keys // self.vocab, return_inverse=True, return_counts=True
        )
        totals = torch.zeros(len(contexts), dtype=torch.int64, device=keys.device).index_add_(
            0, inverse, counts
        )
        once, twice = int((counts == 1).sum()), int((counts == 2).sum())
        discount = once / (once + 2 * twice) if once and twice else 0.5
        return Level(keys, counts, contexts, totals, followers, discount)

    def probabilities(self, context: Tensor, target: Tensor) -> Tensor:
        """P(target | the last order-1 tokens), F64; context [n, order-1], target [n]."""
        p = torch.full(target.shape, 1.0 / self.vocab, dtype=torch.float64, device=target.device)
        for n, level in enumerate(reversed(self.levels), start=1):
            key = torch.zeros_like(target)
            for i in range(self.order - n, self.order - 1):
                key = key * self.vocab + context[:, i]
            at, known = find(level.contexts, key)
            total = level.totals[at].double()
            where, seen = find(level.keys, key * self.vocab + target)
            count = torch.where(seen, level.counts[where], 0).double()
            kept = (count - level.discount).clamp(min=0) / total
            spread = level.discount * level.followers[at].double() / total
            mixed = kept + spread * p
            p = torch.where(known, mixed, p)
        return p


class TrigramDrafter:
    """Drafts the most frequent token after the last two, or after the last one for an unseen two."""

    def __init__(self, tokens: Tensor, vocab: int) -> None:
        self.vocab = vocab
        self.tables = [self._best(tokens, n) for n in (3, 2)]

    def _best(self, tokens: Tensor, order: int) -> tuple[Tensor, Tensor]:
        keys, counts = torch.unique(pack(tokens, order, self.vocab), return_counts=True)
        order_by = torch.argsort(counts, descending=True, stable=True)
        keys = keys[order_by]
        by_context = torch.argsort(keys // self.vocab, stable=True)  # most frequent first inside a context
        keys = keys[by_context]
        contexts = keys // self.vocab
        first = torch.ones_like(contexts, dtype=torch.bool)
        first[1:] = contexts[1:] != contexts[:-1]
        return contexts[first], keys[first] % self.vocab

    def draft(self, before: Tensor, last: Tensor) -> Tensor:
        """The drafted token after (before, last), elementwise."""
        (pairs, after_pair), (singles, after_single) = self.tables
        at, seen = find(pairs, before * self.vocab + last)
        single, known = find(singles, last)
        fallback = torch.where(known, after_single[single], torch.zeros_like(last))
        return torch.where(seen, after_pair[at], fallback)
