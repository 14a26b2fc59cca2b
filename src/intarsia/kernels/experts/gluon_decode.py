# mypy: ignore-errors
# ruff: noqa: PIE808, RET505, RUF005 (Gluon knows no other way to write these)
"""The product of experts in tiles with few rows of x each: weights go from memory into registers.

One program takes QUARTERS * 32 rows of one expert's weight, up to NT of its pairs and all columns, with four
warps of sixteen-row products. Nothing passes through shared memory and nothing waits at a barrier.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from intarsia.kernels.experts.gluon_blocks import nth_pair, pairs_of
from intarsia.kernels.experts.gluon_tiles import (
    UNSCALE,
    along,
    code_offsets,
    rows_of,
    scale_layout,
    scale_offsets,
    store_inner,
    store_parts,
    swiglu_of,
    without,
)
from intarsia.kernels.experts.gluon_weights import PLACES, WARPS, first_requests, operand, request

WAIT_FIRST = gl.constexpr(1)
"""Launched early; the blocks come from the kernel before it."""
WAIT_FOR_X = gl.constexpr(2)
"""Launched early; the blocks are older, so the first weights are loaded before waiting for x."""


@gluon.constexpr_function
def x_layout():
    """[row 8, w 4, lane 4, i 4, h 2]: one row and a lane's columns of it; each warp holds a copy."""
    registers = [[0, 0, 0, 0, 1], [0, 0, 0, 1, 0], [0, 0, 0, 2, 0], [0, 1, 0, 0, 0], [0, 2, 0, 0, 0]]
    lanes = [[0, 0, 1, 0, 0], [0, 0, 2, 0, 0], [1, 0, 0, 0, 0], [2, 0, 0, 0, 0], [4, 0, 0, 0, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[0] * 5] * 2, [], [8, 4, 4, 4, 2])


@gluon.jit
def x_operand(words, OPERAND: gl.constexpr):
    """The operand [128, 8] of a step's pairs of x, [8, 4, 4, 4] int32."""
    spread = gl.full([8, 4, 4, 4, 2], 0, gl.int32, x_layout())
    values = gl.inline_asm_elementwise(
        "mov.b32 $0, $1;",
        "=r,r,r",
        [gl.expand_dims(words, 4) | spread],
        dtype=gl.bfloat16,
        is_pure=True,
        pack=2,
    )
    values = gl.reshape(gl.permute(values, [1, 3, 2, 4, 0]), [128, 8])
    return gl.convert_layout(values, OPERAND, assert_trivial=True)


@gluon.jit
def place_of(blocks, row, count, SORTED: gl.constexpr):
    """Where the pairs at `row` of a block stand, those beyond it where its last does: a place in `order`, or
    without lists the pair itself.
    """
    row = gl.minimum(row, count - 1)
    if SORTED:
        return blocks[1] + row
    else:
        return nth_pair(blocks[0], blocks[1], blocks[2] + row)


@gluon.jit
def rows_at(
    x, blocks, count, K: gl.constexpr, TOP: gl.constexpr, GATED: gl.constexpr, SORTED: gl.constexpr,
    FIRST: gl.constexpr,
):  # fmt: skip
    """Where a lane's pairs of x lie, of the eight rows from row FIRST of the block on.

    Rows beyond the block's read its last one again, and nothing of them is stored.
    """
    LX: gl.constexpr = without(x_layout(), 4)
    place = place_of(blocks, FIRST + along(8, LX, 0, 4), count, SORTED)
    if GATED and SORTED:
        place = gl.load(blocks[0] + place)
    if GATED:
        place = place // TOP
    lanes = place * (K // 2) + along(4, LX, 2, 4) * 4
    return x + lanes + (along(4, LX, 1, 4) * 16 + along(4, LX, 3, 4))


@gluon.jit
def places_at(blocks, count, LAYOUT: gl.constexpr, SORTED: gl.constexpr, FIRST: gl.constexpr):
    """Where the eight pairs from row FIRST of a block on stand, and which of them there are."""
    row = FIRST + gl.arange(0, 8, layout=LAYOUT)
    if SORTED:
        # Places, not rows, are compared: those the compiler would keep in registers from block to block.
        place = blocks[1] + row
        return place, place < blocks[1] + count
    else:
        return place_of(blocks, row, count, False), row < count


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
    EARLY_X: x of the first eight is loaded a step ahead too.
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
