# mypy: ignore-errors
# ruff: noqa: PIE808, RUF005 (Gluon knows no other way to write these)
"""The product of experts in tiles with many rows of x each: weights in registers, x in shared memory.

One program takes QUARTERS * 64 rows of one expert's weight, up to NT of its pairs and all columns, with two
warp groups. Weights go from memory into registers and are decoded there, as in gluon_decode; tiles of x
[NT, 128] come by TMA, so its rows lie in the order of the blocks. A warp group's product reads x in the true
order of columns, so x is stored as [w w i i t t h] (see gluon_tiles).

Decoding always runs beside a multiplication: each half step (64 columns) beside the half before it.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from intarsia.kernels.experts.gluon_tiles import (
    UNSCALE,
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

PLACES = gl.constexpr(64)
WARPS = gl.constexpr(8)


@gluon.jit
def halves(words, scale_words, QUARTERS: gl.constexpr):
    """A step's words and scales as those of its first and second 64 columns, the scales one a word."""
    even, odd, even_next, odd_next = scale_pairs(scale_words)
    SLICE: gl.constexpr = without(code_layout(QUARTERS, PLACES, 2), 4)
    words = gl.permute(gl.reshape(words, [QUARTERS, PLACES, 4, 2, 2]), [0, 1, 2, 4, 3])
    first, second = gl.split(words)
    first = gl.convert_layout(first, SLICE, assert_trivial=True)
    second = gl.convert_layout(second, SLICE, assert_trivial=True)
    return first, per_word(even, odd, QUARTERS), second, per_word(even_next, odd_next, QUARTERS)


@gluon.jit
def per_word(even, odd, QUARTERS: gl.constexpr):
    """Pairs of scales [QUARTERS / 2, PLACES, 4] of even and odd quarters, one for each of two words."""
    scales = gl.permute(gl.join(even, odd), [0, 3, 1, 2])
    scales = gl.reshape(scales, [QUARTERS, PLACES, 4])
    SLICE: gl.constexpr = without(code_layout(QUARTERS, PLACES, 2), 4)
    return gl.convert_layout(gl.join(scales, scales), SLICE, assert_trivial=True)


@gluon.jit
def one_step(
    sums, ring, tiles, ready, x, start, words_at, scales_at, step, phase,
    STAGE: gl.constexpr, STEPS: gl.constexpr, QUARTERS: gl.constexpr, NT: gl.constexpr,
    STAGES: gl.constexpr, DEPTH: gl.constexpr, LEFT: gl.constexpr,
):  # fmt: skip
    """128 columns; refills the stage that the step before it used."""
    first, first_scales, second, second_scales = halves(ring[0], ring[1], QUARTERS)
    a = decoded(first, first_scales, QUARTERS, PLACES, 2, LEFT)
    mbarrier.wait(ready[STAGE], phase)
    sums = warpgroup_mma(a, tiles[STAGE].slice(0, 64, 1).permute([1, 0]), sums, is_async=True)
    sums = warpgroup_mma_wait(1, [sums])
    BEFORE: gl.constexpr = (STAGE + STAGES - 1) % STAGES
    left = step + (STAGES - 1) < STEPS
    mbarrier.expect(ready[BEFORE], NT * 256, pred=left)
    gl.thread_barrier()  # every warp is done with the step before
    tma.async_copy_global_to_shared(
        x, [start, (step + STAGES - 1) * 128], ready[BEFORE], tiles[BEFORE], pred=left
    )
    a = decoded(second, second_scales, QUARTERS, PLACES, 2, LEFT)
    ahead = gl.minimum(step + DEPTH, STEPS - 1)
    ring = ring[2:] + (load_words(words_at + ahead * 2048, False), gl.load(scales_at + ahead * 256))
    sums = warpgroup_mma(a, tiles[STAGE].slice(64, 64, 1).permute([1, 0]), sums, is_async=True)
    sums = warpgroup_mma_wait(1, [sums])
    return sums, ring


@gluon.jit
def many_rows(
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
    GATED: gl.constexpr,
    QUARTERS: gl.constexpr,
    NT: gl.constexpr,
    STAGES: gl.constexpr,
    DEPTH: gl.constexpr,
):
    """As gluon_decode.few_rows, with x a descriptor of rows [pairs, K] in places of `order`, tiles [NT, 128].

    STAGES: tiles of x in shared memory, at most K / 128. DEPTH: steps of weights in flight.
    """
    BN: gl.constexpr = QUARTERS * 64
    STEPS: gl.constexpr = K // 128
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, NT, 16])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    part = gl.program_id(0)
    block = gl.program_id(1)
    count = gl.load(block_count + block)
    expert = gl.load(block_expert + block)
    start = gl.load(block_start + block)
    if count > 0:
        # One allocation a stage: the compiler then sees that stages do not overlap.
        tiles = ()
        ready = ()
        for _ in gl.static_range(STAGES):
            tiles = tiles + (gl.allocate_shared_memory(gl.bfloat16, [NT, 128], x.layout),)
            barrier = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
            mbarrier.init(barrier, count=1)
            ready = ready + (barrier,)
        gl.thread_barrier()
        row = expert.to(gl.int64) * N + part * BN
        lanes, registers = code_offsets(K, QUARTERS, PLACES, 4)
        words_at = codes + row * (K // 8) + lanes + registers
        scales_at = scales + row * (K // 64) + scale_offsets(K, QUARTERS, PLACES)
        ring = ()
        for step in gl.static_range(DEPTH):
            ring = ring + (load_words(words_at + step * 2048, False), gl.load(scales_at + step * 256))
        for stage in gl.static_range(STAGES - 1):
            mbarrier.expect(ready[stage], NT * 256)
        gl.thread_barrier()
        for stage in gl.static_range(STAGES - 1):
            tma.async_copy_global_to_shared(x, [start, stage * 128], ready[stage], tiles[stage])
        sums = gl.full([BN, NT], 0.0, gl.float32, SUMS)
        for turn in range(0, STEPS // STAGES):
            for stage in gl.static_range(STAGES):
                sums, ring = one_step(
                    sums, ring, tiles, ready, x, start, words_at, scales_at, turn * STAGES + stage, turn & 1,
                    stage, STEPS, QUARTERS, NT, STAGES, DEPTH, LEFT,
                )  # fmt: skip
        for stage in gl.static_range(STEPS % STAGES):
            sums, ring = one_step(
                sums, ring, tiles, ready, x, start, words_at, scales_at, STEPS // STAGES * STAGES + stage,
                (STEPS // STAGES) & 1, stage, STEPS, QUARTERS, NT, STAGES, DEPTH, LEFT,
            )  # fmt: skip
        sums = warpgroup_mma_wait(0, [sums])
        for stage in gl.static_range(STAGES):
            mbarrier.invalidate(ready[stage])
        own = global_scales + expert * PARTS
        if GATED:
            gate_scale = gl.load(own) * UNSCALE
            up_scale = gl.load(own + PARTS - 1) * UNSCALE
            values = swiglu_of(sums, gate_scale, up_scale, limit, QUARTERS, PLACES, NT)
            store_inner(out, values, part * (BN // 2), start, count, N, BN // 2, NT, False)
        else:
            sums = rows_of(sums, QUARTERS, PLACES, NT)
            store_parts(out, sums, order, own, part * BN, start, count, N, PARTS, BN, NT)
