"""From scores to token positions, with one fixed rule for ties: the lowest pool."""

import torch
from torch import Tensor


def selected_width(top_tokens: int, group: int) -> int:
    """How many positions a selection has room for: the chosen pools and the visible part of one more."""
    return top_tokens + group - 1


def select_tokens(scores: Tensor, positions: Tensor, top_tokens: int, group: int) -> Tensor:
    """Token positions int32 [R, selected_width], rising, -1 where there is none.

    scores float32 [R, P], minus infinity for pools that the row must not see. The best `top_tokens / group`
    pools are kept, of equal scores those with the lowest number; the tokens of the unfinished pool are
    always seen. A row on the last token of a pool has no unfinished pool, and does not see itself unless its
    pool is kept.
    """
    rows, pools = scores.shape
    kept = min(top_tokens // group, pools)
    order = torch.sort(scores, dim=1, descending=True, stable=True)
    best = torch.where(order.values[:, :kept] > -torch.inf, order.indices[:, :kept], pools).sort(1).values
    tokens = best.unsqueeze(-1) * group + torch.arange(group, device=scores.device)
    tokens = tokens.masked_fill((best == pools).unsqueeze(-1), -1).view(rows, -1)
    place = positions.to(torch.int64).unsqueeze(1)
    tail_start = (place + 1) // group * group
    tail = tail_start + torch.arange(group - 1, device=scores.device)
    tail = tail.masked_fill(tail > place, -1)
    missing = tokens.new_full((rows, top_tokens - tokens.shape[1]), -1)
    return torch.cat([tokens, missing, tail], 1).to(torch.int32)
