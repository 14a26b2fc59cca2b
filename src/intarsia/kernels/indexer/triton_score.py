# mypy: ignore-errors
"""Scores of pooled keys for the rows of a step, tile by tile of a stream's pools.

A program takes tiles of one segment in turn and scores each for up to RB of its rows, so a tile is read once
for all rows that see it. A score is one product of PB pools with the heads of two rows and a sum over the
heads of each, the same instructions whatever else the program does; of an odd number of rows the last is
taken twice.
"""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit(do_not_specialize=["base", "rows"])
def score_tiles(
    q,
    weights,
    cache,
    page_table,
    positions,
    streams,
    starts,
    scores,
    base,
    rows,
    width,
    table_width,
    head_factor,
    factor,
    H: tl.constexpr,
    D: tl.constexpr,
    GROUP: tl.constexpr,
    PER_PAGE: tl.constexpr,
    LEAST: tl.constexpr,
    PB: tl.constexpr,
    RB: tl.constexpr,
    WIDE: tl.constexpr,
    STAGES: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """q [R, H, D], weights float32 [R, H]; scores float32 [rows, width] of the rows from `base` on. Pools
    that a row does not see are not written, nor is anything for rows that see LEAST pools or fewer. The grid
    is [programs a segment, segments, blocks of RB rows]. Everything but `q` and `weights` was written before
    the launch before this one.
    """
    segment = tl.program_id(1)
    first = tl.maximum(tl.load(starts + segment), base) + tl.program_id(2) * RB
    end = tl.minimum(tl.minimum(tl.load(starts + segment + 1), base + rows), first + RB)
    if first >= end:
        if OVERLAP:
            gdc_wait()
            gdc_launch_dependents()
        return
    seen = (tl.load(positions + end - 1) + 1) // GROUP
    if seen <= LEAST:
        seen = 0
    table = page_table + tl.load(streams + first).to(tl.int64) * table_width
    h, c = tl.arange(0, 2 * H), tl.arange(0, D)
    OPERAND: tl.constexpr = tl.float32 if WIDE else q.dtype.element_ty
    for tile in range(tl.program_id(0), tl.cdiv(seen, PB), tl.num_programs(0)):
        pool = tile * PB + tl.arange(0, PB)
        there = pool < seen
        if PER_PAGE % PB == 0:
            page = tl.load(table + tile * PB // PER_PAGE)
        else:
            page = tl.load(table + pool // PER_PAGE, mask=there, other=0)
        place = page.to(tl.int64) * PER_PAGE + pool % PER_PAGE
        keys = tl.load(cache + place[:, None] * D + c[None, :], mask=there[:, None], other=0.0).to(OPERAND)
        if OVERLAP:
            gdc_wait()
            gdc_launch_dependents()
        for pair in tl.range(0, tl.cdiv(end - first, 2), num_stages=STAGES):
            row = first + 2 * pair
            own = tl.minimum(row + h // H, end - 1).to(tl.int64) * H + h % H
            queries = tl.load(q + own[:, None] * D + c[None, :]).to(OPERAND)
            products = tl.dot(keys, tl.trans(queries), input_precision="ieee" if WIDE else "tf32")
            # As torch does it, a product that is not a number stays one.
            relevant = tl.where(products < 0, 0.0, products) * factor
            share = tl.load(weights + own) * head_factor
            score = tl.sum(tl.reshape(relevant * share[None, :], [PB, 2, H]), 2)
            rows_of_pair = tl.minimum(row + tl.arange(0, 2), end - 1)
            visible = (tl.load(positions + rows_of_pair) + 1) // GROUP
            target = scores + (rows_of_pair - base).to(tl.int64)[None, :] * width + pool[:, None]
            tl.store(target, score, mask=pool[:, None] < visible[None, :])
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
