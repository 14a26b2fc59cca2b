# mypy: ignore-errors
# ruff: noqa: PIE808, RUF005 (Gluon knows no other way to write these)
"""The product of experts in tiles with few rows of x each: weights go from memory into registers.

One program takes QUARTERS * 32 rows of one expert's weight, up to NT of its pairs and all columns, with four
warps of sixteen-row products. Nothing passes through shared memory and nothing waits at a barrier.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from intarsia.kernels.experts.gluon_tiles import (
    UNSCALE,
    along,
    code_layout,
    code_offsets,
    decoded,
    load_words,
    rows_of,
    scale_offsets,
    scale_pairs,
    store_inner,
    store_parts,
    swiglu_of,
    without,
)

NO_OVERLAP = gl.constexpr(0)
"""Launched after the kernel before it."""
WAIT_FIRST = gl.constexpr(1)
"""Launched early; the blocks come from the kernel before it."""
WAIT_FOR_X = gl.constexpr(2)
"""Launched early; the blocks are older, so the first weights are loaded before waiting for x."""

PLACES = gl.constexpr(32)
WARPS = gl.constexpr(4)


@gluon.constexpr_function
def x_layout(GROUPS):
    """[group of rows, row 8, w 4, lane 4, i 4, h 2]: a row and a lane's columns; each warp holds a copy."""
    registers = [
        [0, 0, 0, 0, 0, 1],
        [0, 0, 0, 0, 1, 0],
        [0, 0, 0, 0, 2, 0],
        [0, 0, 1, 0, 0, 0],
        [0, 0, 2, 0, 0, 0],
    ]
    registers += [[1 << bit, 0, 0, 0, 0, 0] for bit in range(GROUPS.bit_length() - 1)]
    lanes = [
        [0, 0, 0, 1, 0, 0],
        [0, 0, 0, 2, 0, 0],
        [0, 1, 0, 0, 0, 0],
        [0, 2, 0, 0, 0, 0],
        [0, 4, 0, 0, 0, 0],
    ]
    return gl.DistributedLinearLayout(registers, lanes, [[0] * 6] * 2, [], [GROUPS, 8, 4, 4, 4, 2])


@gluon.jit
def x_operand(words, GROUPS: gl.constexpr, OPERAND: gl.constexpr):
    """The operand [128, 8 * GROUPS] of a step's pairs of x, [GROUPS, 8, 4, 4, 4] int32."""
    spread = gl.full([GROUPS, 8, 4, 4, 4, 2], 0, gl.int32, x_layout(GROUPS))
    values = gl.inline_asm_elementwise(
        "mov.b32 $0, $1;",
        "=r,r,r",
        [gl.expand_dims(words, 5) | spread],
        dtype=gl.bfloat16,
        is_pure=True,
        pack=2,
    )
    values = gl.reshape(gl.permute(values, [2, 4, 3, 5, 0, 1]), [128, 8 * GROUPS])
    return gl.convert_layout(values, OPERAND, assert_trivial=True)


@gluon.jit
def weights(words, scale_words, QUARTERS: gl.constexpr, OPERAND: gl.constexpr):
    """The operand [QUARTERS * 32, 128] of a step."""
    even, odd, even_next, odd_next = scale_pairs(scale_words)
    scales = gl.join(
        gl.join(even, even_next), gl.join(odd, odd_next)
    )  # [half, place, lane, group, quarter % 2]
    scales = gl.reshape(gl.permute(scales, [0, 4, 1, 2, 3]), [QUARTERS, PLACES, 4, 2])
    scales = gl.reshape(gl.join(scales, scales), [QUARTERS, PLACES, 4, 4])
    SLICE: gl.constexpr = without(code_layout(QUARTERS, PLACES, 4), 4)
    scales = gl.convert_layout(scales, SLICE, assert_trivial=True)
    return decoded(words, scales, QUARTERS, PLACES, 4, OPERAND)


@gluon.jit
def few_rows(
    x,
    codes,
    scales,
    global_scales,
    order,
    block_expert,
    block_start,
    block_count,
    out,
    limit,
    N: gl.constexpr,
    K: gl.constexpr,
    PARTS: gl.constexpr,
    TOP: gl.constexpr,
    GATED: gl.constexpr,
    QUARTERS: gl.constexpr,
    NT: gl.constexpr,
    DEPTH: gl.constexpr,
    EARLY_X: gl.constexpr,
    PASSING: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """GATED: out bfloat16 [pairs, N / 2] = SwiGLU of x [rows, K] through gate and up rows, in places of
    `order` and as the next product reads it. Else out float32 [pairs, N] from x [pairs, K] in places of
    `order`.

    x: pairs of bfloat16 as int32. PARTS: global scales of an expert. DEPTH: steps of weights in flight.
    EARLY_X: x is loaded a step ahead too.
    """
    GROUPS: gl.constexpr = NT // 8
    BN: gl.constexpr = QUARTERS * 32
    HALVES: gl.constexpr = 4 // QUARTERS  # programs that share a tile
    STEPS: gl.constexpr = K // 128
    LX: gl.constexpr = without(x_layout(GROUPS), 5)
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1], [16, 8])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, SUMS, 2)
    part = gl.program_id(0)
    block = gl.program_id(1)
    if OVERLAP == WAIT_FIRST:
        gdc_wait()
        gdc_launch_dependents()
    count = gl.load(block_count + block)
    expert = gl.load(block_expert + block)
    start = gl.load(block_start + block)
    if count > 0:
        tile = expert.to(gl.int64) * (N // 128) + part // HALVES
        lanes, registers = code_offsets(K, QUARTERS, PLACES, 4)
        words_at = codes + tile * (16 * K) + part % HALVES * (QUARTERS * 512) + lanes + registers
        scales_at = (
            scales + tile * (2 * K) + part % HALVES * (QUARTERS // 2) + scale_offsets(K, QUARTERS, PLACES)
        )
        ring = ()
        for step in gl.static_range(DEPTH):
            ring = ring + (load_words(words_at + step * 2048, PASSING), gl.load(scales_at + step * 256))
        if OVERLAP == WAIT_FOR_X:
            gdc_wait()
            gdc_launch_dependents()
        # Rows beyond the block's read its last one again, and nothing of them is stored.
        place = start + gl.minimum(along(8, LX, 1, 5) + along(GROUPS, LX, 0, 5) * 8, count - 1)
        if GATED:
            place = gl.load(order + place) // TOP
        x_at = (
            x + (place * (K // 2) + along(4, LX, 3, 5) * 4) + (along(4, LX, 2, 5) * 16 + along(4, LX, 4, 5))
        )
        if EARLY_X:
            ahead = gl.load(x_at)
        sums = gl.full([BN, NT], 0.0, gl.float32, SUMS)
        for _ in range(0, STEPS // DEPTH - 1):
            for step in gl.static_range(DEPTH):
                if EARLY_X:
                    now = ahead
                    ahead = gl.load(x_at + (step + 1) * 64)
                else:
                    now = gl.load(x_at + step * 64)
                a = weights(ring[0], ring[1], QUARTERS, LEFT)
                sums = mma_v2(a, x_operand(now, GROUPS, RIGHT), sums)
                ring = ring[2:] + (
                    load_words(words_at + (DEPTH + step) * 2048, PASSING),
                    gl.load(scales_at + (DEPTH + step) * 256),
                )
            words_at += DEPTH * 2048
            scales_at += DEPTH * 256
            x_at += DEPTH * 64
        LAST: gl.constexpr = DEPTH + STEPS % DEPTH
        for step in gl.static_range(DEPTH, LAST):
            ring = ring + (load_words(words_at + step * 2048, PASSING), gl.load(scales_at + step * 256))
        for step in gl.static_range(LAST):
            if EARLY_X:
                now = ahead
                if step < LAST - 1:
                    ahead = gl.load(x_at + (step + 1) * 64)
            else:
                now = gl.load(x_at + step * 64)
            a = weights(ring[2 * step], ring[2 * step + 1], QUARTERS, LEFT)
            sums = mma_v2(a, x_operand(now, GROUPS, RIGHT), sums)
        own = global_scales + expert * PARTS
        if GATED:
            gate_scale = gl.load(own) * UNSCALE
            up_scale = gl.load(own + PARTS - 1) * UNSCALE
            values = swiglu_of(sums, gate_scale, up_scale, limit, QUARTERS, PLACES, NT)
            store_inner(out, values, part * (BN // 2), start, count, N, BN // 2, NT, True)
        else:
            store_parts(
                out,
                rows_of(sums, QUARTERS, PLACES, NT),
                order,
                own,
                part * BN,
                start,
                count,
                N,
                PARTS,
                BN,
                NT,
            )
    elif OVERLAP == WAIT_FOR_X:
        gdc_wait()  # so that what comes after this kernel comes after the one before it too
