# mypy: ignore-errors
"""The likeliest token of shards of a vocabulary: what a rank offers, and which of all offers is drawn.

An offer is one int64: the logit's bits in the order of their values above, the complement of the id below, so
that the largest is the likeliest, and of equal ones the lowest id.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

IDS = tl.constexpr(0xFFFFFFFF)


@triton.jit
def offer_of_rows(peaks, tokens, offers, rows, first_id, ROWS: tl.constexpr, OVERLAP: tl.constexpr):
    """offers int64 [R] of peaks float32 [R] and columns int64 [R] (-1: none) of a shard; one program."""
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.arange(0, ROWS)
    bits = (tl.load(peaks + row, row < rows, 0.0) + 0.0).to(tl.int32, bitcast=True)
    ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)
    token = tl.maximum(tl.load(tokens + row, row < rows, 0), 0) + first_id
    tl.store(offers + row, (ordered << 32) | (IDS - token), row < rows)


@triton.jit
def best_offer(offers, out, rows, ROWS: tl.constexpr, RANKS: tl.constexpr, OVERLAP: tl.constexpr):
    """out int64 [R]: the token of the largest of offers [RANKS, R], -1 where its logit is not finite."""
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.arange(0, ROWS)
    best = tl.load(offers + row, row < rows, 0)
    for rank in tl.static_range(1, RANKS):
        best = tl.maximum(best, tl.load(offers + rank * rows + row, row < rows, 0))
    ordered = (best >> 32).to(tl.int32)
    peak = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    finite = (peak > -float("inf")) & (peak < float("inf"))
    tl.store(out + row, tl.where(finite, IDS - (best & IDS), -1), row < rows)
