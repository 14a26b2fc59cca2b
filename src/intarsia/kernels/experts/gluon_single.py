# mypy: ignore-errors
# ruff: noqa: SIM102 (a branch on a constant)
"""The product of experts in tiles with one row of x: what it waits for is short, and so is its code.

A pair is a block here, so nobody looks for pairs. A program takes 64 rows of one expert's weight and all
columns, with four warps of sixteen-row products, as `gluon_decode` does, and adds in the same order. x goes
whole into shared memory while the first weights are on their way; a load of x for each step would be waited
for each time, since all programs of a multiprocessor come to it at once. The code of the loop is there once:
in its last turn it asks for nothing.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from intarsia.kernels.experts.gluon_rows import x_layout, x_operand
from intarsia.kernels.experts.gluon_tiles import (
    UNSCALE,
    code_offsets,
    rows_of,
    scale_offsets,
    store_inner,
    store_parts,
    swiglu_of,
    without,
)
from intarsia.kernels.experts.gluon_weights import PLACES, WARPS, weights

QUARTERS = gl.constexpr(2)
ROWS = gl.constexpr(64)
"""Rows of a program."""

# Kept out of L1, and left as they were where there is nothing to ask for.
WORDS_ASM = gl.constexpr("""{
.reg .pred p;
setp.ne.u32 p, $8, 0;
@p ld.global.L1::no_allocate.v4.b32 {$0, $1, $2, $3}, [$4];
}""")
WORD_ASM = gl.constexpr("""{
.reg .pred p;
setp.ne.u32 p, $2, 0;
@p ld.global.L1::no_allocate.b32 $0, [$1];
}""")


@gluon.constexpr_function
def power_of_two(count):
    """The smallest that is at least `count`."""
    return 1 << (count - 1).bit_length()


@gluon.jit
def asked(words_at, scales_at, there):
    """Words of codes and of scales of a step, where it is `there`; else anything."""
    words = gl.inline_asm_elementwise(
        WORDS_ASM,
        "=r,=r,=r,=r,l,l,l,l,r,r,r,r",
        [words_at.to(gl.int64), there],
        dtype=gl.int32,
        is_pure=True,
        pack=4,
    )
    scale_words = gl.inline_asm_elementwise(
        WORD_ASM, "=r,l,r", [scales_at.to(gl.int64), there], dtype=gl.int32, is_pure=True, pack=1
    )
    return words, scale_words


@gluon.jit
def x_of(shared, step, OPERAND: gl.constexpr):
    """The operand [128, 8] of a step: the row of x eight times."""
    LX: gl.constexpr = without(x_layout(), 4)
    words = shared.index(step).load(gl.SliceLayout(0, LX))
    return x_operand(gl.expand_dims(words, 0) | gl.full([8, 4, 4, 4], 0, gl.int32, LX), OPERAND)


@gluon.jit
def finish(
    out, sums, own, first_own, last_own, limit, part, pair, real,
    N: gl.constexpr, PARTS: gl.constexpr, GATED: gl.constexpr,
):  # fmt: skip
    """Store the first of the eight columns of sums, where the pair is `real`."""
    if GATED:
        values = swiglu_of(sums, first_own * UNSCALE, last_own * UNSCALE, limit, QUARTERS, PLACES, 8)
        column = gl.arange(0, 8, layout=gl.SliceLayout(0, values.type.layout))
        store_inner(
            out, values, part * (ROWS // 2), pair + 0 * column, (column == 0) & real, N, ROWS // 2, True
        )
    else:
        sums = rows_of(sums, QUARTERS, PLACES, 8)
        column = gl.arange(0, 8, layout=gl.SliceLayout(0, sums.type.layout))
        store_parts(
            out, sums, pair + 0 * column, (column == 0) & real, own, first_own, part * ROWS, N, PARTS, ROWS
        )


@gluon.jit
def one_row(
    x, codes, scales, global_scales, experts, out, limit,
    N: gl.constexpr, K: gl.constexpr, PARTS: gl.constexpr, GATED: gl.constexpr, DEPTH: gl.constexpr,
    RELEASE: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    """GATED: out bfloat16 [pairs, N / 2] = SwiGLU of x [1, K] through gate and up rows, as the next product
    reads it. Else out float32 [pairs, N] from x [pairs, K]. Nothing is stored for pairs without an expert.

    x: pairs of bfloat16 as int32. PARTS: global scales of an expert. DEPTH: steps of weights in flight, which
    divides all steps. RELEASE: at which step of the GATED the next kernel may begin, a multiple of DEPTH.
    OVERLAP: begun before the kernel before it has ended, which made `experts`, or x where not GATED.
    """
    STEPS: gl.constexpr = K // 128
    WORDS: gl.constexpr = K // 2
    PLACES_OF_X: gl.constexpr = power_of_two(STEPS)
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1], [16, 8])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, SUMS, 2)
    COPY: gl.constexpr = gl.BlockedLayout([4 if WORDS >= 512 else 1], [32], [WARPS], [0])
    FLAT: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    shared = gl.allocate_shared_memory(
        gl.int32, [PLACES_OF_X, 4, 4, 4], gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
    )
    part = gl.program_id(0)
    pair = gl.program_id(1)
    word = gl.arange(0, PLACES_OF_X * 64, layout=COPY)
    if PLACES_OF_X > STEPS:
        word = gl.minimum(word, WORDS - 1)
    x_at = x + word
    if OVERLAP and GATED:
        gdc_wait()
    if GATED:
        row = gl.load(x_at)  # before anything waits for the expert
    expert = gl.load(experts + pair)
    real = expert >= 0
    expert = gl.maximum(expert, 0)
    there = gl.where(real, 1, 0)
    tile = expert.to(gl.int64) * (N // 128) + part // 2
    lanes, registers = code_offsets(K, QUARTERS, PLACES, 4)
    words_at = codes + tile * (16 * K) + part % 2 * (QUARTERS * 512) + lanes + registers
    scales_at = scales + tile * (2 * K) + part % 2 + scale_offsets(K, QUARTERS, PLACES)
    ring = ()
    for step in gl.static_range(DEPTH):
        ring = ring + asked(words_at + step * 2048, scales_at + step * 256, there)
    own = global_scales + expert * PARTS
    first_own = gl.load(own)
    last_own = gl.load(own + PARTS - 1)
    if not GATED:
        if OVERLAP:
            gdc_wait()
            gdc_launch_dependents()
        row = gl.load(x_at + pair * WORDS)
    shared._reinterpret(gl.int32, [PLACES_OF_X * 64], FLAT).store(row)
    sums = gl.full([ROWS, 8], 0.0, gl.float32, SUMS)
    if STEPS == DEPTH:
        for i in gl.static_range(STEPS):
            a = weights(ring[2 * i], ring[2 * i + 1], QUARTERS, LEFT)
            sums = mma_v2(a, x_of(shared, i, RIGHT), sums)
    else:
        for step in range(0, STEPS, DEPTH):
            if OVERLAP and GATED:
                if step == RELEASE:
                    gdc_launch_dependents()
            words_at += DEPTH * 2048
            scales_at += DEPTH * 256
            there = gl.where(step + DEPTH < STEPS, there, 0)
            for i in gl.static_range(DEPTH):
                a = weights(ring[0], ring[1], QUARTERS, LEFT)
                ring = ring[2:] + asked(words_at + i * 2048, scales_at + i * 256, there)
                sums = mma_v2(a, x_of(shared, step + i, RIGHT), sums)
    finish(out, sums, own, first_own, last_own, limit, part, pair, real, N, PARTS, GATED)
