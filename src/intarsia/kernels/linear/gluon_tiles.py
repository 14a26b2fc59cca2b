# mypy: ignore-errors
# ruff: noqa: RET505, RUF005
"""A program's tile of `gluon_many`: pointers, buffers of x, and the steps that decode beside products."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_wait

from intarsia.kernels.codes import BLOCK, MXFP8, PLAIN
from intarsia.kernels.linear.fragments import (
    LIFT,
    exponent_pairs,
    index,
    numbers,
    stream,
    weight_layout,
    without,
)

COLUMNS = gl.constexpr(128)  # of a step


@gluon.jit
def half_operand(
    words,
    scale,
    FORMAT: gl.constexpr,
    GROUPS: gl.constexpr,
    WARPS: gl.constexpr,
    LW: gl.constexpr,
    A: gl.constexpr,
):
    """The A operand [8 GROUPS WARPS, 64] of half a step; rows in the order [group / 2, warp, group % 2]."""
    CHUNKS: gl.constexpr = 2 if FORMAT == PLAIN else 1
    K16S: gl.constexpr = 2 if FORMAT == PLAIN else 4
    if FORMAT == MXFP8:
        factors = exponent_pairs(scale)
    else:
        factors = gl.full([1, GROUPS, 8 * WARPS, CHUNKS, 4], LIFT, gl.int32, without(LW, 5, 6))
    value = numbers(words, factors, FORMAT, LW)
    value = gl.reshape(value, [GROUPS // 2, 2, WARPS, 8, CHUNKS, 4, K16S, 2, 2])
    value = gl.permute(value, [0, 2, 1, 3, 4, 6, 7, 5, 8])
    return gl.convert_layout(gl.reshape(value, [8 * GROUPS * WARPS, 64]), A, assert_trivial=True)


@gluon.jit
def load_half(wp, sp, step, HALF: gl.constexpr, FORMAT: gl.constexpr):
    """Words and scales of half a step."""
    if FORMAT == PLAIN:
        return stream(wp + step * 64 + HALF * 32), 0
    elif FORMAT == MXFP8:
        return stream(wp + step * 32 + HALF * 16), gl.load(sp + step * 4 + HALF * 2).to(gl.int32)
    elif HALF == 0:
        return stream(wp + step * 32), gl.load(sp + step)
    else:
        return stream(wp + step * 32 + 16), 0


@gluon.jit
def one_step(
    acc,
    ring,
    buffers,
    full,
    xd,
    row,
    begin,
    wp,
    sp,
    step,
    phase,
    STAGE: gl.constexpr,
    LAST: gl.constexpr,
    FORMAT: gl.constexpr,
    GROUPS: gl.constexpr,
    WARPS: gl.constexpr,
    NT: gl.constexpr,
    STAGES: gl.constexpr,
    DEPTH: gl.constexpr,
    LW: gl.constexpr,
    A: gl.constexpr,
):
    """128 columns more. With blocks of K their product must be complete before its scale can be added."""
    a = half_operand(ring[0], ring[1], FORMAT, GROUPS, WARPS, LW, A)
    mbarrier.wait(full[STAGE], phase)
    b = buffers[STAGE].slice(0, 64, 1).permute([1, 0])
    if FORMAT == BLOCK:
        product = gl.full(acc.type.shape, 0.0, gl.float32, acc.type.layout)
        product = warpgroup_mma(a, b, product, use_acc=False, is_async=True)
    else:
        acc = warpgroup_mma(a, b, acc, is_async=True)
        acc = warpgroup_mma_wait(1, [acc])
    # Every warp is past the step before: its buffer is free.
    FREE: gl.constexpr = (STAGE + STAGES - 1) % STAGES
    more = step + (STAGES - 1) <= LAST
    mbarrier.expect(full[FREE], NT * COLUMNS * 2, pred=more)
    gl.thread_barrier()
    tma.async_copy_global_to_shared(
        xd, [row, begin + (step + STAGES - 1) * COLUMNS], full[FREE], buffers[FREE], pred=more
    )
    a = half_operand(ring[2], ring[3], FORMAT, GROUPS, WARPS, LW, A)
    scale = ring[1]
    ahead = gl.minimum(step + DEPTH, LAST)
    ring = ring[4:] + load_half(wp, sp, ahead, 0, FORMAT) + load_half(wp, sp, ahead, 1, FORMAT)
    b = buffers[STAGE].slice(64, 64, 1).permute([1, 0])
    if FORMAT == BLOCK:
        product = warpgroup_mma(a, b, product, is_async=True)
        product = warpgroup_mma_wait(0, [product])
        acc = gl.fma(product, scale, acc)
    else:
        acc = warpgroup_mma(a, b, acc, is_async=True)
        acc = warpgroup_mma_wait(1, [acc])
    return acc, ring


@gluon.jit
def row_in_tile(
    n, GROUPS: gl.constexpr, WARPS: gl.constexpr, GATED: gl.constexpr, L: gl.constexpr, RANK: gl.constexpr
):
    """The row of the weight, from the tile's first, of each [group, row of the warps]."""
    group = index(GROUPS, L, 1, RANK)
    row = index(8 * WARPS, L, 2, RANK)
    if GATED:
        return row + group // 2 * (8 * WARPS) + group % 2 * (n // 2)
    else:
        return row // 8 * 16 + row % 8 + (group // 2 * (16 * WARPS) + group % 2 * 8)


@gluon.jit
def pointers(
    weight,
    scale,
    tile,
    n,
    begin,
    K: gl.constexpr,
    FORMAT: gl.constexpr,
    BN: gl.constexpr,
    WARPS: gl.constexpr,
    GATED: gl.constexpr,
    EVEN: gl.constexpr,
    LW: gl.constexpr,
    SUMS: gl.constexpr,
):
    """Where a program's words and scales begin, at column `begin`."""
    GROUPS: gl.constexpr = BN // (8 * WARPS)
    CHUNKS: gl.constexpr = 2 if FORMAT == PLAIN else 1
    ROW: gl.constexpr = K // 2 if FORMAT == PLAIN else K // 4
    LP: gl.constexpr = without(LW, 6)
    LS: gl.constexpr = without(LW, 5, 6)
    first = tile * (BN // 2) if GATED else tile * BN
    place = index(1, LP, 0, 6) + index(4, LP, 4, 6) * 4 + index(CHUNKS, LP, 3, 6) * 16 + index(4, LP, 5, 6)
    near = row_in_tile(n, GROUPS, WARPS, GATED, LP, 6)
    if EVEN:
        wp = weight + first.to(gl.int64) * ROW + begin * ROW // K + (near * ROW + place)
    else:
        wp = weight + begin * ROW // K + (gl.minimum(first + near, n - 1) * ROW + place)
    if FORMAT == MXFP8:
        near = row_in_tile(n, GROUPS, WARPS, GATED, LS, 5)
        place = index(1, LS, 0, 5) + index(CHUNKS, LS, 3, 5) + index(4, LS, 4, 5) // 2
        if EVEN:
            sp = scale + first.to(gl.int64) * (K // 32) + begin // 32 + (near * (K // 32) + place)
        else:
            sp = scale + begin // 32 + (gl.minimum(first + near, n - 1) * (K // 32) + place)
    elif FORMAT == BLOCK:
        sp = scale + (first // 128 * (K // 128) + begin // 128)
        if GATED:
            half = gl.arange(0, BN, layout=gl.SliceLayout(1, SUMS)) // 8 % 2
            sp = sp + gl.expand_dims(half, 1) * (n // 256 * (K // 128))
    else:
        sp = scale
    return wp, sp


@gluon.jit
def tile_sums(
    xd,
    weight,
    scale,
    tile,
    n,
    row,
    begin,
    K: gl.constexpr,
    FORMAT: gl.constexpr,
    RUNS: gl.constexpr,
    STEPS: gl.constexpr,
    WARPS: gl.constexpr,
    BN: gl.constexpr,
    NT: gl.constexpr,
    STAGES: gl.constexpr,
    DEPTH: gl.constexpr,
    GATED: gl.constexpr,
    EVEN: gl.constexpr,
):
    """[BN, NT]: RUNS ranges of STEPS steps each, from column `begin` on, added in order."""
    GROUPS: gl.constexpr = BN // (8 * WARPS)
    LAST: gl.constexpr = RUNS * STEPS - 1
    LW: gl.constexpr = weight_layout(
        1, GROUPS, WARPS, 2 if FORMAT == PLAIN else 1, 2 if FORMAT == PLAIN else 4
    )
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, NT, 16])
    A: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    gl.static_assert(RUNS == 1 or STEPS % STAGES == 0, "the buffers must divide a range")
    buffers = ()
    full = ()
    for _ in gl.static_range(STAGES):
        buffers = buffers + (gl.allocate_shared_memory(gl.bfloat16, [NT, COLUMNS], xd.layout),)
        barrier = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
        mbarrier.init(barrier, count=1)
        full = full + (barrier,)
    wp, sp = pointers(weight, scale, tile, n, begin, K, FORMAT, BN, WARPS, GATED, EVEN, LW, SUMS)
    ring = ()
    for j in gl.static_range(DEPTH):
        at = min(j, LAST)
        ring = ring + load_half(wp, sp, at, 0, FORMAT) + load_half(wp, sp, at, 1, FORMAT)
    # Weights are on their way; only now what the kernel before has written is needed.
    gdc_wait()
    for j in gl.static_range(STAGES - 1):
        mbarrier.expect(full[j], NT * COLUMNS * 2, pred=j <= LAST)
    gl.thread_barrier()
    for j in gl.static_range(STAGES - 1):
        tma.async_copy_global_to_shared(xd, [row, begin + j * COLUMNS], full[j], buffers[j], pred=j <= LAST)
    none = gl.full([BN, NT], 0.0, gl.float32, SUMS)
    total = none
    # Where the total does not fit the registers beside the sums of a range (and the product of a block).
    MOST: gl.constexpr = 32 if FORMAT == BLOCK else 64  # sums a thread
    SHARED: gl.constexpr = RUNS > 1 and BN * NT // (32 * WARPS) > MOST
    if SHARED:
        kept = gl.allocate_shared_memory(gl.float32, [BN, NT], gl.SwizzledSharedLayout(8, 1, 8, [1, 0]))
        kept.store(none)
    for run in range(RUNS):
        acc = none
        for i in range(STEPS // STAGES):
            for j in gl.static_range(STAGES):
                turn = run * (STEPS // STAGES) + i
                acc, ring = one_step(
                    acc, ring, buffers, full, xd, row, begin, wp, sp, turn * STAGES + j, turn & 1, j, LAST,
                    FORMAT, GROUPS, WARPS, NT, STAGES, DEPTH, LW, A,
                )  # fmt: skip
        for j in gl.static_range(STEPS % STAGES):
            acc, ring = one_step(
                acc, ring, buffers, full, xd, row, begin, wp, sp, STEPS // STAGES * STAGES + j,
                (STEPS // STAGES) & 1, j, LAST, FORMAT, GROUPS, WARPS, NT, STAGES, DEPTH, LW, A,
            )  # fmt: skip
        if FORMAT != BLOCK:
            acc = warpgroup_mma_wait(0, [acc])
        if SHARED:
            kept.store(kept.load(SUMS) + acc)
        elif RUNS == 1:
            total = acc
        else:
            total = total + acc
    if SHARED:
        total = kept.load(SUMS)
    for j in gl.static_range(STAGES):
        mbarrier.invalidate(full[j])
    return total
