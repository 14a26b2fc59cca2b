"""Scores of pooled keys: score(t, p) = sum_h w_h H^-1/2 relu(q_h . P_p D^-1/2), float32."""

from functools import partial

import torch
from torch import Tensor

from intarsia.core.rows import pad_rows
from intarsia.kernels.rows import Rows
from intarsia.kernels.tiles import in_row_tiles


def score_pools(q: Tensor, weights: Tensor, cache: Tensor, rows: Rows, group: int) -> Tensor:
    """Scores float32 [R, pools of the window] of queries [R, H, D] with head weights [R, H].

    cache [pages + 1, page / group, D]. A row may see the pools whose last token is at or before its own
    position; all others score minus infinity. Pools are scored one page at a time, so that a score's bits do
    not depend on the length of the context; pages that no row of a segment sees are skipped.
    """
    heads, width = q.shape[1:]
    tile = cache.shape[1]
    out = q.new_full((q.shape[0], rows.page_table.shape[1] * tile), -torch.inf, dtype=torch.float32)
    head_weights = weights.float().unsqueeze(1) * heads**-0.5
    for segment in rows.segments():
        queries = pad_rows(q[segment.rows].float())
        padded_weights = pad_rows(head_weights[segment.rows])
        for logical in range(-(-(segment.end // group) // tile)):
            keys = cache[int(rows.page_table[segment.stream, logical])].float()
            products = in_row_tiles(partial(_products, keys), queries)
            relevant = torch.relu(products * width**-0.5)
            scores = in_row_tiles(torch.bmm, padded_weights, relevant).squeeze(1)
            out[segment.rows, logical * tile : (logical + 1) * tile] = scores[: segment.count]
    last_token = torch.arange(out.shape[1], device=out.device) * group + group - 1
    return out.masked_fill(last_token > rows.positions.unsqueeze(1), -torch.inf)


def _products(keys: Tensor, queries: Tensor) -> Tensor:
    """Dot products [R, H, pools] of queries [R, H, D] with keys [pools, D]."""
    rows, heads, width = queries.shape
    return (queries.reshape(-1, width) @ keys.T).view(rows, heads, -1)
