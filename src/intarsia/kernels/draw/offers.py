"""Launches for the likeliest token where ranks have shards of the vocabulary."""

import torch
from torch import Tensor

from intarsia.kernels.device import interpreting, on_device_of, power_of_two
from intarsia.kernels.draw.search import likeliest_of


def offer(logits: Tensor, first_id: int) -> Tensor:
    """What a rank offers of its shard of float32 logits [R, n], ids from `first_id` on: int64 [R].

    As `sampling.candidates.pack` of the peak and its lowest id; a NaN counts as infinity.
    """
    from intarsia.kernels.draw import triton_offers as kernels

    peaks, tokens = likeliest_of(logits)
    offers, rows = torch.empty_like(tokens), len(tokens)
    with on_device_of(logits):
        kernels.offer_of_rows[(1,)](
            peaks, tokens, offers, rows, first_id, ROWS=power_of_two(rows), num_warps=4, **_overlap()
        )
    return offers


def best(offers: Tensor) -> Tensor:
    """The token int64 [R] of the largest of all ranks' offers int64 [ranks, R]; -1 where its logit is not
    finite."""
    from intarsia.kernels.draw import triton_offers as kernels

    ranks, rows = offers.shape
    out = torch.empty(rows, dtype=torch.int64, device=offers.device)
    with on_device_of(offers):
        kernels.best_offer[(1,)](
            offers, out, rows, ROWS=power_of_two(rows), RANKS=ranks, num_warps=4, **_overlap()
        )
    return out


def _overlap() -> dict[str, bool]:
    return {"OVERLAP": False} if interpreting() else {"OVERLAP": True, "launch_pdl": True}
