"""Pooled keys: one key for every group of consecutive tokens, written when the group is complete."""

import torch
from torch import Tensor

from intarsia.kernels.paging import physical_rows
from intarsia.kernels.ring import earlier, remember
from intarsia.kernels.rows import Rows


def pool_keys(keys: Tensor, gates: Tensor, ape: Tensor, tail: Tensor, cache: Tensor, rows: Rows) -> None:
    """Fold `keys` and `gates` [R, D] into the pooled cache; unfinished groups wait in `tail`.

    A group is `ape.shape[0]` tokens aligned to the start of the sequence. Its key is the sum over its tokens
    j of softmax_j(gate_j + ape_j) * key_j, a separate softmax per channel. tail [streams, ring, 2 * D] holds
    the raw pairs by position modulo its length; cache [pages + 1, page / group, D].
    """
    group = ape.shape[0]
    pairs = torch.cat([keys, gates], -1)
    for segment in rows.segments():
        ring = tail[segment.stream]
        before = segment.position % group
        known = torch.cat([earlier(ring, segment, before), pairs[segment.rows].float()])
        remember(ring, pairs[segment.rows], segment)
        complete = known.shape[0] // group
        if not complete:
            continue
        key, gate = known[: complete * group].view(complete, group, -1).chunk(2, -1)
        share = torch.softmax(gate + ape.float(), 1)
        pooled = (share * key).sum(1)
        first = segment.position // group
        numbers = torch.arange(first, first + complete, device=cache.device)
        places = physical_rows(rows.page_table[segment.stream], numbers, cache.shape[1])
        cache.view(-1, cache.shape[-1])[places] = pooled.to(cache.dtype)
