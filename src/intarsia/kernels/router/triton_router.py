# mypy: ignore-errors
"""The router in two kernels: scores in ranges of columns, then each row's choice and weights.

A score is the sum of RANGES partial sums in their order, each of them a chain of products in the order of
columns; none of it depends on how many rows there are.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from intarsia.kernels.experts.triton_order import ordered


@triton.jit
def order_of(value):
    """int32 that sorts as the float32 does."""
    bits = value.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit(do_not_specialize=["rows"])
def score(
    x,
    weight,
    parts,
    rows,
    EXPERTS: tl.constexpr,
    K: tl.constexpr,
    RANGES: tl.constexpr,
    BE: tl.constexpr,
    BK: tl.constexpr,
    NT: tl.constexpr,
    WIDE: tl.constexpr,
    STAGES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """parts float32 [RANGES, rows, EXPERTS]: x [rows, K] times the weight over one range of columns each.

    WIDE: products of float32 numbers, for a weight of float32 (or without tensor cores).
    """
    expert = tl.program_id(0) * BE + tl.arange(0, BE)
    row = tl.program_id(2) * NT + tl.arange(0, NT)
    first = tl.program_id(1) * (K // RANGES)
    column = first + tl.arange(0, BK)
    weight_at = weight + tl.minimum(expert, EXPERTS - 1)[:, None] * K + column[None, :]
    x_at = x + tl.minimum(row, rows - 1).to(tl.int64)[:, None] * K + column[None, :]
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    total = tl.zeros([BE, NT], tl.float32)
    for step in tl.range(0, K // (RANGES * BK), num_stages=STAGES):
        w = tl.load(weight_at + step * BK)
        rows_of_x = tl.load(x_at + step * BK)
        if WIDE:
            total = tl.dot(
                w.to(tl.float32), tl.trans(rows_of_x).to(tl.float32), total, input_precision="ieee"
            )
        else:
            total = tl.dot(w, tl.trans(rows_of_x), total)
    at = parts + (tl.program_id(1) * rows + row).to(tl.int64)[None, :] * EXPERTS + expert[:, None]
    tl.store(at, total, mask=(row < rows)[None, :] & (expert < EXPERTS)[:, None])


@triton.jit(do_not_specialize=["rows"])
def score_few(
    x,
    weight,
    parts,
    arranged,
    rows,
    EXPERTS: tl.constexpr,
    K: tl.constexpr,
    RANGES: tl.constexpr,
    BE: tl.constexpr,
    NT: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """`score` of up to NT rows and bfloat16 weights: all of a program's weights are on their way before it
    waits for x.

    Programs beyond those of the experts, one for each row: their range of the row's columns into `arranged`,
    as the experts' products of few rows read them.
    """
    expert = tl.program_id(0) * BE + tl.arange(0, BE)
    row = tl.arange(0, NT)
    COLUMNS: tl.constexpr = K // RANGES
    PROGRAMS: tl.constexpr = (EXPERTS + BE - 1) // BE
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    if tl.program_id(0) < PROGRAMS:
        w = tl.load(weight + tl.minimum(expert, EXPERTS - 1)[:, None] * K + column[None, :])
        if OVERLAP:
            gdc_wait()
            gdc_launch_dependents()
        rows_of_x = tl.load(x + tl.minimum(row, rows - 1)[:, None] * K + column[None, :])
        total = tl.dot(w, tl.trans(rows_of_x))
        at = parts + (tl.program_id(1) * rows + row)[None, :] * EXPERTS + expert[:, None]
        tl.store(at, total, mask=(row < rows)[None, :] & (expert < EXPERTS)[:, None])
    else:
        if OVERLAP:
            gdc_wait()
            gdc_launch_dependents()
        begin = (tl.program_id(0) - PROGRAMS) * K
        tl.store(arranged + begin + column, ordered(tl.load(x + begin + column), COLUMNS // 128))


@triton.jit
def summed(parts, row, rows, place, EXPERTS: tl.constexpr, RANGES: tl.constexpr):
    """A row's scores float32 of the experts at `place`, zeros where there is none."""
    score = tl.zeros(place.shape, tl.float32)
    for part in tl.static_range(RANGES):
        at = parts + (part * rows + row).to(tl.int64) * EXPERTS + place
        score += tl.load(at, mask=place < EXPERTS, other=0)
    return score


@triton.jit
def ranked(score, added, place, EXPERTS: tl.constexpr):
    """int32 that sort as the scores after the sigmoid and with what is `added`; the least of all where there
    is no expert."""
    return tl.where(place < EXPERTS, order_of(1 / (1 + tl.exp(-score)) + added), -(1 << 31))


@triton.jit(do_not_specialize=["rows", "top"])
def choose(
    parts,
    bias,
    streams,
    experts,
    weights,
    rows,
    top,
    scaling,
    eps,
    EXPERTS: tl.constexpr,
    RANGES: tl.constexpr,
    PLACES: tl.constexpr,
    MORE: tl.constexpr,
    SLOTS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """One program a row: the `top` experts by sigmoid of the score + bias, ties to the lowest number, and
    their weights; -1 and zeros where the row belongs to no stream. PLACES and MORE: powers of two that hold
    EXPERTS together, MORE 0 where PLACES does alone; SLOTS: one that holds `top`.

    A step comes to this code once a layer, and no cache has kept it since: its size is most of its time. So
    the picks are a loop, and places are few.
    """
    row = tl.program_id(0)
    place = tl.arange(0, PLACES)
    # Older than the kernel before, and most often in no cache.
    added = tl.load(bias + place, mask=place < EXPERTS, other=0)
    if MORE > 0:
        more_place = PLACES + tl.arange(0, MORE)
        more_added = tl.load(bias + more_place, mask=more_place < EXPERTS, other=0)
    some = tl.load(streams + row) >= 0
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    score = summed(parts, row, rows, place, EXPERTS, RANGES)
    if MORE > 0:
        more_score = summed(parts, row, rows, more_place, EXPERTS, RANGES)
        more_key = ranked(more_score, more_added, more_place, EXPERTS)
    key = ranked(score, added, place, EXPERTS)
    LOWEST: tl.constexpr = -(1 << 31)
    slot = tl.arange(0, SLOTS)
    chosen = tl.zeros([SLOTS], tl.int32)
    index = 0
    while index < top:
        best = tl.max(key, 0)
        if MORE > 0:
            best = tl.maximum(best, tl.max(more_key, 0))
        found = tl.min(tl.where(key == best, place, PLACES + MORE), 0)
        if MORE > 0:
            found = tl.minimum(found, tl.min(tl.where(more_key == best, more_place, PLACES + MORE), 0))
            more_key = tl.where(more_place == found, LOWEST, more_key)
        key = tl.where(place == found, LOWEST, key)
        chosen = tl.where(slot == index, found, chosen)
        index += 1
    own = tl.gather(score, tl.minimum(chosen, PLACES - 1), 0)
    if MORE > 0:
        beyond = tl.gather(more_score, tl.maximum(chosen - PLACES, 0), 0)
        own = tl.where(chosen < PLACES, own, beyond)
    values = tl.where(slot < top, 1 / (1 + tl.exp(-own)), 0.0)
    values = values / (tl.sum(values, 0) + eps) * scaling
    at = row * top + slot
    tl.store(experts + at, tl.where(some, chosen, -1), mask=slot < top)
    tl.store(weights + at, tl.where(some, values, 0.0), mask=slot < top)
