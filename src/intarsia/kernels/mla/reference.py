"""One latent per token serves all heads as key and as value.

kv_b [H * (K + V), L] holds per head K key rows, then V value rows. The key rows are applied to the query and
the value rows to the result, so that the cache holds nothing but the latents.
"""

import torch
from torch import Tensor

from intarsia.kernels.rows import Rows
from intarsia.kernels.tiles import in_row_tiles
from intarsia.kernels.weights import Weight, dense

ROW_BLOCK = 16


def absorb_keys(q: Tensor, kv_b: Weight, key_width: int, value_width: int) -> Tensor:
    """Queries [R, H, K] carried into latent space, [R, H, L]."""
    heads = dense(kv_b, q.dtype).view(q.shape[1], key_width + value_width, -1)
    keys = heads[:, :key_width]
    return in_row_tiles(lambda part: torch.bmm(part.transpose(0, 1), keys).transpose(0, 1), q)


def expand_values(latents: Tensor, kv_b: Weight, key_width: int, value_width: int) -> Tensor:
    """Attended latents [R, H, L] turned into head outputs [R, H * V]."""
    heads = dense(kv_b, latents.dtype).view(latents.shape[1], key_width + value_width, -1)
    values = heads[:, key_width:].transpose(1, 2)
    return in_row_tiles(
        lambda part: torch.bmm(part.transpose(0, 1), values).transpose(0, 1), latents
    ).flatten(1)


def attend(
    q: Tensor, cache: Tensor, selected: Tensor, rows: Rows, scale: float, latent_scales: Tensor | None = None
) -> Tensor:
    """Softmax attention of absorbed queries [R, H, L] over the latents each row has selected; [R, H, L].

    cache [pages + 1, page, L], its rows times `latent_scales` [pages + 1, page] if given; selected
    int32 [R, S], token positions of the row's own stream in any order, -1 where there is none. Scores,
    softmax and sums are float32. S is the same for every row and context length, so a row's bits do not
    depend on its neighbours. Padding rows get zeros, whatever `selected` says of them.
    """
    flat, page = cache.view(-1, cache.shape[-1]), cache.shape[1]
    out = torch.zeros_like(q)
    real = rows.real
    for first in range(0, real, ROW_BLOCK):
        block = slice(first, first + ROW_BLOCK)
        chosen = selected[block].to(torch.int64)
        tables = rows.page_table[rows.streams[block].clamp(min=0).to(torch.int64)].to(torch.int64)
        positions = chosen.clamp(min=0)
        places = tables.gather(1, positions // page) * page + positions % page
        latents = flat[places].float()
        if latent_scales is not None:
            latents = latents * latent_scales.view(-1)[places].unsqueeze(-1)
        scores = torch.bmm(q[block].float(), latents.transpose(1, 2)) * scale
        unseen = (chosen < 0).unsqueeze(1)
        # A row that sees nothing has a softmax of NaN; any other NaN is a fault and must stay visible.
        attention = torch.softmax(scores.masked_fill(unseen, -torch.inf), -1).masked_fill(unseen, 0.0)
        count = min(ROW_BLOCK, real - first)
        out[first : first + count] = torch.bmm(attention, latents).to(q.dtype)[:count]
    return out
