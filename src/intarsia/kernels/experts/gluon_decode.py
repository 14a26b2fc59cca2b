# mypy: ignore-errors
"""The product of experts in tiles with few rows of x each: weights go from memory into registers.

One program takes QUARTERS * 32 rows of one expert's weight, up to NT of its pairs and all columns, with four
warps of sixteen-row products. Nothing passes through shared memory and nothing waits at a barrier.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from intarsia.kernels.experts.gluon_blocks import pairs_of
from intarsia.kernels.experts.gluon_products import multiply
from intarsia.kernels.experts.gluon_tiles import along, code_offsets, scale_layout, scale_offsets
from intarsia.kernels.experts.gluon_weights import PLACES, first_requests

WAIT_FIRST = gl.constexpr(1)
"""Launched early; the blocks come from the kernel before it."""
WAIT_FOR_X = gl.constexpr(2)
"""Launched early; the blocks are older, so the first weights are loaded before waiting for x."""


@gluon.jit
def block_rows(
    x, codes, scales, bases, marks, records, global_scales, blocks, expert, count, out, limit,
    N: gl.constexpr, K: gl.constexpr, PARTS: gl.constexpr, TOP: gl.constexpr, GATED: gl.constexpr,
    SORTED: gl.constexpr, QUARTERS: gl.constexpr, NT: gl.constexpr, DEPTH: gl.constexpr,
    EARLY_X: gl.constexpr, PASSING: gl.constexpr, RESIDENT: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    """The product of a program's weights and one block."""
    HALVES: gl.constexpr = 4 // QUARTERS  # programs that share a tile
    part = gl.program_id(0)
    tile = expert.to(gl.int64) * (N // 128) + part // HALVES
    half = part % HALVES
    lanes, registers = code_offsets(K, QUARTERS, PLACES, 4)
    words_at = codes + tile * (16 * K) + half * (QUARTERS * 512) + lanes + registers
    if RESIDENT:
        LR: gl.constexpr = scale_layout(2, PLACES)
        place = along(PLACES, LR, 1, 3)
        lane = along(4, LR, 2, 3)
        scales_at = scales + tile * K + (place * 4 + lane)
        marks_at = marks + tile * (K // 32) + (place // 8 + lane * 0)
        base = gl.load(bases + tile * 32 + (place + lane * 0)) >> (half * 16)
        compressed = (records, base, half, half * 16)
    else:
        scales_at = scales + tile * (2 * K) + half * (QUARTERS // 2) + scale_offsets(K, QUARTERS, PLACES)
        marks_at = marks
        compressed = (records, records, half, half)
    ring, next_marks = first_requests(
        words_at, scales_at, marks_at, compressed, QUARTERS, PASSING, DEPTH, RESIDENT
    )
    if OVERLAP == WAIT_FOR_X:
        gdc_wait()
        gdc_launch_dependents()
    own = global_scales + expert * PARTS
    if NT == 24 and count > 16:
        multiply(
            x, words_at, scales_at, marks_at, next_marks, compressed, ring, out, blocks, own, limit, part,
            count, N, K, PARTS, TOP, GATED, SORTED, QUARTERS, 3, DEPTH, EARLY_X, PASSING, RESIDENT,
        )  # fmt: skip
    elif NT >= 16 and count > 8:
        multiply(
            x, words_at, scales_at, marks_at, next_marks, compressed, ring, out, blocks, own, limit, part,
            count, N, K, PARTS, TOP, GATED, SORTED, QUARTERS, 2, DEPTH, EARLY_X, PASSING, RESIDENT,
        )  # fmt: skip
    else:
        multiply(
            x, words_at, scales_at, marks_at, next_marks, compressed, ring, out, blocks, own, limit, part,
            count, N, K, PARTS, TOP, GATED, SORTED, QUARTERS, 1, DEPTH, EARLY_X, PASSING, RESIDENT,
        )  # fmt: skip


@gluon.jit(do_not_specialize=["most"])
def few_rows(
    x,
    codes,
    scales,
    bases,
    marks,
    records,
    global_scales,
    order,
    block_expert,
    block_start,
    block_count,
    most,
    out,
    limit,
    N: gl.constexpr,
    K: gl.constexpr,
    PARTS: gl.constexpr,
    TOP: gl.constexpr,
    GATED: gl.constexpr,
    SORTED: gl.constexpr,
    QUARTERS: gl.constexpr,
    NT: gl.constexpr,
    DEPTH: gl.constexpr,
    EARLY_X: gl.constexpr,
    PASSING: gl.constexpr,
    RESIDENT: gl.constexpr,
    OVERLAP: gl.constexpr,
    ONCE: gl.constexpr,
):
    """GATED: out bfloat16 [pairs, N / 2] = SwiGLU of x [rows, K] through gate and up rows, in places of
    `order` and as the next product reads it. Else out float32 [pairs, N] from x [pairs, K] in places of
    `order`.

    Up to `most` blocks are dealt to the programs of a part in turn, up to one that counts nothing. ONCE:
    there is a program for each.

    Without SORTED there are no lists: `order` holds the experts of up to 64 pairs, which stand for their
    places, and `block_*` nothing. A block is then begun by one of its pairs, and there is a program for each.

    x: pairs of bfloat16 as int32. RESIDENT: `scales` are nibbles, and `bases`, `marks` and `records` with
    them those of `resident`. PARTS: global scales of an expert. NT: 8, 16 or 24 pairs of a block; eight
    columns of a product are left out where a block has none for them. DEPTH: steps of weights in flight.
    EARLY_X: x of the first eight is loaded a step ahead too. OVERLAP: WAIT_FIRST, WAIT_FOR_X, or 0 where the
    kernel before it has ended.
    """
    block = gl.program_id(1)
    if OVERLAP == WAIT_FIRST:
        gdc_wait()
        gdc_launch_dependents()
    if not SORTED:
        expert, low, high, earlier, count = pairs_of(order, block, NT)
        if count > 0:
            block_rows(
                x, codes, scales, bases, marks, records, global_scales, (low, high, earlier), expert, count,
                out, limit, N, K, PARTS, TOP, GATED, False, QUARTERS, NT, DEPTH, EARLY_X, PASSING, RESIDENT,
                OVERLAP,
            )  # fmt: skip
    else:
        count = gl.load(block_count + block)
        expert = gl.load(block_expert + block)
        start = gl.load(block_start + block)
        if ONCE:
            if count > 0:
                block_rows(
                    x, codes, scales, bases, marks, records, global_scales, (order, start), expert, count,
                    out, limit, N, K, PARTS, TOP, GATED, True, QUARTERS, NT, DEPTH, EARLY_X, PASSING,
                    RESIDENT, OVERLAP,
                )  # fmt: skip
        else:
            while count > 0:
                # What the next block is, is asked for before this one.
                block += gl.num_programs(1)
                another = block < most
                next_count = gl.load(block_count + block, mask=another, other=0)
                next_expert = gl.load(block_expert + block, mask=another, other=0)
                next_start = gl.load(block_start + block, mask=another, other=0)
                block_rows(
                    x, codes, scales, bases, marks, records, global_scales, (order, start), expert, count,
                    out, limit, N, K, PARTS, TOP, GATED, True, QUARTERS, NT, DEPTH, EARLY_X, PASSING,
                    RESIDENT, OVERLAP,
                )  # fmt: skip
                count = next_count
                expert = next_expert
                start = next_start
    if OVERLAP == WAIT_FOR_X:
        gdc_wait()  # so that what comes after this kernel comes after the one before it too
