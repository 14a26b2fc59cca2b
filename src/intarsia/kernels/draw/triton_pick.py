# mypy: ignore-errors
"""The draw among candidates of several shards, one program a row: cuts, noise and choice as integers.

Operations must not be fused, as in `triton_draw`.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from intarsia.kernels.draw.triton_draw import MINIMUM, NO_ID, distance, gumbel
from intarsia.kernels.draw.triton_offers import IDS
from intarsia.kernels.draw.triton_search import mass_of

PADDING = tl.constexpr(-(2**63))


@triton.jit(do_not_specialize=["count", "certain_k"])
def pick_of_rows(
    keys,
    floors,
    masses,
    peaks,
    scales,
    top_ks,
    top_ps,
    farthest,
    positions,
    seed_low,
    seed_high,
    coarse,
    fine,
    out,
    count,
    certain_k,
    UNCERTAIN: tl.constexpr,
    COUNT: tl.constexpr,
    CUT: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """out int64 [R]: the token drawn among keys int64 [R, count], the likelier first.

    floors, masses int64 [R] as `Candidates` has them. -1 where nothing may be drawn, UNCERTAIN where the
    candidates do not settle it: a row whose last known candidate is kept though more may follow, or whose
    top k is above `certain_k`. Without CUT all candidates are allowed, in any order.
    """
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, COUNT)
    key = tl.load(keys + row * count + at, at < count, PADDING)
    ordered = (key >> 32).to(tl.int32)
    logit = (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    token = IDS - (key & IDS)
    kept = (key != PADDING) & (logit > -float("inf"))
    peak = tl.load(peaks + row)
    below = distance(logit, peak, tl.load(scales + row))
    certain = True
    if CUT:
        top_k, top_p = tl.load(top_ks + row), tl.load(top_ps + row)
        floor = tl.load(floors + row)
        kept = kept & ((top_k == 0) | (at < top_k))
        mass = tl.where(kept, mass_of(tl.where(kept, below, 0), coarse, fine), 0)
        before = tl.cumsum(mass, 0) - mass
        total = tl.where(top_k > 0, tl.sum(mass, 0), tl.load(masses + row))
        needed = tl.ceil(total.to(tl.float64) * top_p).to(tl.int64)
        needed = tl.where(top_p >= 1, NO_ID, needed)
        kept = kept & (before < needed) & (below <= tl.load(farthest + row))
        known = tl.sum(((at < count) & (key >= floor)).to(tl.int64), 0)
        last = tl.max(tl.where(at == tl.maximum(known - 1, 0), kept.to(tl.int32), 0), 0)
        enough = (top_k > 0) & (top_k <= known)
        certain = ((floor == PADDING) | enough | (last == 0)) & (top_k <= certain_k)
    position = tl.load(positions + row)
    ids = tl.where(key == PADDING, 0, token).to(tl.uint32)
    zero = ids * 0
    noise = gumbel(
        ids,
        zero + (position & 0xFFFFFFFF).to(tl.uint32),
        zero + (position >> 32).to(tl.uint32),
        zero,
        zero + tl.load(seed_low + row).to(tl.uint32),
        zero + tl.load(seed_high + row).to(tl.uint32),
    )
    value = tl.where(kept, noise - below, MINIMUM)
    best = tl.max(value, 0)
    winner = tl.min(tl.where(kept & (value == best), token, NO_ID), 0)
    possible = (peak > -float("inf")) & (peak < float("inf")) & (winner != NO_ID)
    drawn = tl.where(possible, winner, -1)
    if CUT:
        drawn = tl.where(certain | (drawn == -1), drawn, UNCERTAIN)
    tl.store(out + row, drawn)
