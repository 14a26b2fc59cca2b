"""Logprobs of single rows: the network's own, the same whatever else is in the step."""

import torch
from torch import Tensor

from intarsia.engine.events import TokenLogprob
from intarsia.engine.sampling.candidates import pack, unpack


def token_logprob(row: Tensor, token: int, top: int) -> TokenLogprob:
    """The logprob of `token` and of the `top` likeliest, from logits float32 [V]; equal ones by lowest id.

    One row at a time in float64: a sum over several rows may be split differently for other row counts.
    """
    total = torch.logsumexp(row.double(), 0)
    likeliest: list[tuple[int, float]] = []
    if top:
        ids = torch.arange(len(row), device=row.device)
        logits, found = unpack(pack(row, ids).topk(min(top, len(row))).values)
        likeliest = list(zip(found.tolist(), (logits.double() - total).tolist(), strict=True))
    value = row[token]
    above = (row > value).sum() + (row[:token] == value).sum()
    return TokenLogprob(token, float(value.double() - total), int(above) + 1, tuple(likeliest))
