# mypy: ignore-errors
# ruff: noqa: PIE808, RUF005 (Gluon knows no other way to write these)
"""The steps of the product of few rows: a ring of weights on their way, eight rows of x a product, the sums.

Each eight rows have sums of their own, so that a block with fewer of them leaves out whole products.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from intarsia.kernels.experts.gluon_rows import places_at, rows_at, x_operand
from intarsia.kernels.experts.gluon_tiles import UNSCALE, rows_of, store_inner, store_parts, swiglu_of
from intarsia.kernels.experts.gluon_weights import PLACES, WARPS, operand, request


@gluon.jit
def finish(
    out, sums, blocks, own, first_own, last_own, limit, part, count,
    N: gl.constexpr, PARTS: gl.constexpr, GATED: gl.constexpr, SORTED: gl.constexpr, QUARTERS: gl.constexpr,
    FIRST: gl.constexpr,
):  # fmt: skip
    """Store the sums [32 QUARTERS, 8] of up to eight pairs from row FIRST of the block on."""
    BN: gl.constexpr = QUARTERS * 32
    if GATED:
        values = swiglu_of(sums, first_own * UNSCALE, last_own * UNSCALE, limit, QUARTERS, PLACES, 8)
        place, real = places_at(blocks, count, gl.SliceLayout(0, values.type.layout), SORTED, FIRST)
        store_inner(out, values, part * (BN // 2), place, real, N, BN // 2, True)
    else:
        sums = rows_of(sums, QUARTERS, PLACES, 8)
        place, real = places_at(blocks, count, gl.SliceLayout(0, sums.type.layout), SORTED, FIRST)
        if SORTED:
            place = gl.load(blocks[0] + place, mask=real, other=0)
        store_parts(out, sums, place, real, own, first_own, part * BN, N, PARTS, BN)


@gluon.jit
def multiply(
    x, words_at, scales_at, marks_at, marks, compressed, ring, out, blocks, own, limit, part, count,
    N: gl.constexpr, K: gl.constexpr, PARTS: gl.constexpr, TOP: gl.constexpr, GATED: gl.constexpr,
    SORTED: gl.constexpr, QUARTERS: gl.constexpr, GROUPS: gl.constexpr, DEPTH: gl.constexpr,
    EARLY_X: gl.constexpr, PASSING: gl.constexpr, RESIDENT: gl.constexpr,
):  # fmt: skip
    """The product of a program's weights and the first 8 GROUPS pairs of its block.

    EARLY_X: x of the first eight is loaded a step ahead. Marks are loaded two steps before what they lead to.
    """
    STEPS: gl.constexpr = K // 128
    ENTRY: gl.constexpr = 5 if RESIDENT else 2
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1], [16, 8])
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, SUMS, 2)
    first_own = gl.load(own)  # here, as they are in no cache
    last_own = gl.load(own + PARTS - 1)
    x_at = ()
    sums = ()
    for group in gl.static_range(GROUPS):
        x_at = x_at + (rows_at(x, blocks, count, K, TOP, GATED, SORTED, group * 8),)
        sums = sums + (gl.full([QUARTERS * 32, 8], 0.0, gl.float32, SUMS),)
    ahead = gl.load(x_at[0])
    for _ in range(0, STEPS // DEPTH - 1):
        for step in gl.static_range(DEPTH):
            a = operand(ring, compressed, 0, QUARTERS, RESIDENT)
            total = ()
            for group in gl.static_range(GROUPS):
                now = ahead
                if EARLY_X and group == 0:
                    ahead = gl.load(x_at[0] + (step + 1) * 64)
                else:
                    now = gl.load(x_at[group] + step * 64)
                total = total + (mma_v2(a, x_operand(now, RIGHT), sums[group]),)
            sums = total
            ring = ring[ENTRY:] + request(
                words_at, scales_at, marks, compressed, DEPTH + step, QUARTERS, PASSING, RESIDENT
            )
            if RESIDENT:
                marks = (marks[1], gl.load(marks_at + (DEPTH + step + 2) * 4))
        words_at += DEPTH * 2048
        scales_at += DEPTH * (128 if RESIDENT else 256)
        if RESIDENT:
            marks_at += DEPTH * 4
        moved = ()
        for group in gl.static_range(GROUPS):
            moved = moved + (x_at[group] + DEPTH * 64,)
        x_at = moved
    LAST: gl.constexpr = DEPTH + STEPS % DEPTH
    for step in gl.static_range(DEPTH, LAST):
        ring = ring + request(words_at, scales_at, marks, compressed, step, QUARTERS, PASSING, RESIDENT)
        if RESIDENT:
            marks = (marks[1], gl.load(marks_at + (step + 2) * 4))
    for step in gl.static_range(LAST):
        a = operand(ring, compressed, step, QUARTERS, RESIDENT)
        total = ()
        for group in gl.static_range(GROUPS):
            now = ahead
            if EARLY_X and group == 0:
                if step < LAST - 1:
                    ahead = gl.load(x_at[0] + (step + 1) * 64)
            else:
                now = gl.load(x_at[group] + step * 64)
            total = total + (mma_v2(a, x_operand(now, RIGHT), sums[group]),)
        sums = total
    for group in gl.static_range(GROUPS):
        finish(
            out, sums[group], blocks, own, first_own, last_own, limit, part, count,
            N, PARTS, GATED, SORTED, QUARTERS, group * 8,
        )  # fmt: skip
