# mypy: ignore-errors
"""Softmax attention over gathered latents: one set of latents serves all heads of a row, as key and as value.

The slots of a selection are cut into tiles of TB. Tiles without a position are left out, which changes no
bits: they would add zeros and scale by one.

Rows in the recurrent form are few, so their tiles are dealt to ranges that run side by side: all tiles but
the last to SPLITS ranges of EACH, the last, which holds the unfinished pool, to the last range. A range is
one chain of additions with a running maximum, and `add_ranges` adds the ranges in order. How tiles are cut
follows from the number of slots alone. Latents are the tensor core's left operand there, so that a program
may take as few heads as keep the card busy.

A row in the prompt form is one program that takes all heads and all tiles in one chain. The sum of weights
comes from the tensor core as well, as the product with a column of ones.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

LOWEST = tl.constexpr(-1e38)
"""The maximum before any score: finite, so that scaling by it gives no NaN."""


@triton.jit
def gathered(
    cache, scales, table, position, seen, c, PAGE: tl.constexpr, L: tl.constexpr, OPERAND: tl.constexpr
):
    """Latents [TB, L] of `position` through one stream's page table; zeros where not `seen`."""
    page = tl.load(table + position // PAGE, mask=seen, other=0)
    place = page.to(tl.int64) * PAGE + position % PAGE
    latents = tl.load(cache + place[:, None] * L + c[None, :], mask=seen[:, None], other=0.0).to(OPERAND)
    if scales is not None:
        # Powers of two: exact in bfloat16 too.
        scale = tl.load(scales + place, mask=seen, other=1)
        latents = latents * scale.to(OPERAND)[:, None]
    return latents


@triton.jit
def tiles_used(chosen, slots, first, EACH: tl.constexpr, EACH_SIZE: tl.constexpr, TB: tl.constexpr):
    """How many of EACH tiles from tile `first` on reach to the last of their positions."""
    inside = tl.arange(0, EACH_SIZE * TB)
    slot = first * TB + inside
    known = tl.load(chosen + slot, mask=(inside < EACH * TB) & (slot < slots), other=-1) >= 0
    return tl.max(tl.where(known, inside // TB + 1, 0), 0)


@triton.jit(do_not_specialize=["base"])
def attend_ranges(
    q,
    cache,
    scales,
    selected,
    page_table,
    streams,
    starts,
    parts,
    stats,
    factor,
    table_width,
    base,
    end_at,
    slots,
    H: tl.constexpr,
    L: tl.constexpr,
    PAGE: tl.constexpr,
    HB: tl.constexpr,
    TB: tl.constexpr,
    EACH: tl.constexpr,
    EACH_SIZE: tl.constexpr,
    TILES: tl.constexpr,
    SPLITS: tl.constexpr,
    WIDE: tl.constexpr,
    STAGES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """q [R, H, L]; of the rows from `base` on parts float32 [n, H, SPLITS, L] and stats float32 [n, H,
    SPLITS, 2]: the maximum in powers of two and the sum of weights, which is zero for a range without
    positions; nothing else is written for such a range. Rows up to starts[end_at] are dealt with. The grid is
    [SPLITS, blocks of heads, n].
    """
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    row = base + tl.program_id(2)
    if row >= tl.load(starts + end_at):
        return
    split = tl.program_id(0)
    h = tl.program_id(1) * HB + tl.arange(0, HB)
    c = tl.arange(0, L)
    own = row.to(tl.int64) * H + h
    table = page_table + tl.load(streams + row).to(tl.int64) * table_width
    chosen = selected + row.to(tl.int64) * slots
    first = split * EACH
    MAIN: tl.constexpr = (TILES - 1) * TB
    main = tiles_used(chosen, tl.minimum(slots, MAIN), first, EACH, EACH_SIZE, TB)
    tail = tiles_used(chosen, slots, TILES - 1, 1, 1, TB)
    count = main + tl.where(split == SPLITS - 1, tail, 0)
    at = (tl.program_id(2).to(tl.int64) * H + h) * SPLITS + split
    if count == 0:
        tl.store(stats + 2 * at, tl.full([HB], LOWEST, tl.float32), mask=h < H)
        tl.store(stats + 2 * at + 1, tl.zeros([HB], tl.float32), mask=h < H)
        return
    OPERAND: tl.constexpr = tl.float32 if WIDE else q.dtype.element_ty
    EXACT: tl.constexpr = "ieee" if WIDE else "tf32"
    queries = tl.load(q + own[:, None] * L + c[None, :], mask=(h < H)[:, None], other=0).to(OPERAND)
    most = tl.full([HB], LOWEST, tl.float32)
    weight = tl.zeros([HB], tl.float32)
    total = tl.zeros([L, HB], tl.float32)
    for index in tl.range(0, count, num_stages=STAGES):
        tile = tl.where(index < main, first + index, TILES - 1)
        slot = tile * TB + tl.arange(0, TB)
        position = tl.load(chosen + slot, mask=slot < slots, other=-1)
        seen = position >= 0
        latents = gathered(cache, scales, table, position, seen, c, PAGE, L, OPERAND)
        scores = tl.dot(latents, tl.trans(queries), input_precision=EXACT) * factor
        scores = tl.where(seen[:, None], scores, -float("inf"))
        higher = tl.maximum(most, tl.max(scores, 0))
        shrink = tl.exp2(most - higher)
        powers = tl.exp2(scores - higher[None, :])
        weight = weight * shrink + tl.sum(powers, 0)
        total = tl.dot(tl.trans(latents), powers.to(OPERAND), total * shrink[None, :], input_precision=EXACT)
        most = higher
    tl.store(stats + 2 * at, most, mask=h < H)
    tl.store(stats + 2 * at + 1, weight, mask=h < H)
    tl.store(parts + at[None, :] * L + c[:, None], total, mask=(h < H)[None, :])


@triton.jit
def joined(parts, stats, local, c, L: tl.constexpr, SPLITS: tl.constexpr):
    """The result [L] of one row and head: its ranges, which are at `local` of all, added in order."""
    first = stats + local * SPLITS * 2
    most = tl.load(first)
    for split in tl.static_range(1, SPLITS):
        most = tl.maximum(most, tl.load(first + 2 * split))
    total = tl.zeros([L], tl.float32)
    weight = 0.0
    for split in tl.static_range(SPLITS):
        of_split = tl.load(first + 2 * split + 1)
        # Of a range without positions nothing was written: whatever is there is read and not used.
        part = tl.load(parts + (local * SPLITS + split) * L + c)
        shrink = tl.exp2(tl.load(first + 2 * split) - most)
        total += tl.where(of_split == 0, 0.0, part * shrink)
        weight += of_split * shrink
    return total / tl.where(weight == 0, 1.0, weight)


@triton.jit(do_not_specialize=["base"])
def add_ranges(
    parts,
    stats,
    starts,
    out,
    base,
    end_at,
    H: tl.constexpr,
    L: tl.constexpr,
    SPLITS: tl.constexpr,
    ZERO: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Rows of out [R, H, L] from `base` on out of their ranges, added in order; those from starts[end_at] on
    get zeros when ZERO. The grid is [H, n].
    """
    row = base + tl.program_id(1)
    own = row.to(tl.int64) * H + tl.program_id(0)
    local = tl.program_id(1).to(tl.int64) * H + tl.program_id(0)
    c = tl.arange(0, L)
    target = out + own * L + c
    end = tl.load(starts + end_at)
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    if row >= end:
        if ZERO:
            tl.store(target, tl.zeros([L], out.dtype.element_ty))
        return
    tl.store(target, joined(parts, stats, local, c, L, SPLITS).to(out.dtype.element_ty))


@triton.jit
def attend_rows(
    q,
    cache,
    scales,
    selected,
    page_table,
    streams,
    starts,
    out,
    factor,
    table_width,
    begin_at,
    end_at,
    slots,
    H: tl.constexpr,
    L: tl.constexpr,
    PAGE: tl.constexpr,
    HB: tl.constexpr,
    TB: tl.constexpr,
    EACH_SIZE: tl.constexpr,
    TILES: tl.constexpr,
    WIDE: tl.constexpr,
    STAGES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """q, out [R, H, L]; rows from starts[begin_at] to starts[end_at] are dealt with, rows from there on get
    zeros. The grid is [blocks of heads, R].
    """
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    row = tl.program_id(1)
    h = tl.program_id(0) * HB + tl.arange(0, HB)
    c = tl.arange(0, L)
    own = row.to(tl.int64) * H + h
    target = out + own[:, None] * L + c[None, :]
    end = tl.load(starts + end_at)
    if row < tl.load(starts + begin_at):
        return
    if row >= end:
        tl.store(target, tl.zeros([HB, L], out.dtype.element_ty), mask=(h < H)[:, None])
        return
    table = page_table + tl.load(streams + row).to(tl.int64) * table_width
    chosen = selected + row.to(tl.int64) * slots
    MAIN: tl.constexpr = (TILES - 1) * TB
    main = tiles_used(chosen, tl.minimum(slots, MAIN), 0, TILES - 1, EACH_SIZE, TB)
    count = main + tiles_used(chosen, slots, TILES - 1, 1, 1, TB)
    OPERAND: tl.constexpr = tl.float32 if WIDE else q.dtype.element_ty
    EXACT: tl.constexpr = "ieee" if WIDE else "tf32"
    queries = tl.load(q + own[:, None] * L + c[None, :], mask=(h < H)[:, None], other=0).to(OPERAND)
    ones = tl.full([TB, 16], 1, OPERAND)
    most = tl.full([HB], LOWEST, tl.float32)
    weight = tl.zeros([HB, 16], tl.float32)
    total = tl.zeros([HB, L], tl.float32)
    for index in tl.range(0, count, num_stages=STAGES):
        tile = tl.where(index < main, index, TILES - 1)
        slot = tile * TB + tl.arange(0, TB)
        position = tl.load(chosen + slot, mask=slot < slots, other=-1)
        seen = position >= 0
        latents = gathered(cache, scales, table, position, seen, c, PAGE, L, OPERAND)
        scores = tl.dot(queries, tl.trans(latents), input_precision=EXACT) * factor
        scores = tl.where(seen[None, :], scores, -float("inf"))
        higher = tl.maximum(most, tl.max(scores, 1))
        shrink = tl.exp2(most - higher)
        powers = tl.exp2(scores - higher[:, None]).to(OPERAND)
        weight = tl.dot(powers, ones, weight * shrink[:, None], input_precision=EXACT)
        total = tl.dot(powers, latents, total * shrink[:, None], input_precision=EXACT)
        most = higher
    share = tl.max(weight, 1)
    y = total / tl.where(count == 0, 1.0, share)[:, None]
    tl.store(target, y.to(out.dtype.element_ty), mask=(h < H)[:, None])
