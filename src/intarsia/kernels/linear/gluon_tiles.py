# mypy: ignore-errors
# ruff: noqa: RET505, RUF005
"""A program's tile of `gluon_many`: pointers, buffers of x, and the ranges one after another."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma_wait
from triton.language.extra.cuda import gdc_wait

from intarsia.kernels.codes import BLOCK, MXFP8, PLAIN
from intarsia.kernels.linear.fragments import index, weight_layout, without
from intarsia.kernels.linear.gluon_steps import COLUMNS, load_half, one_block, one_step


@gluon.constexpr_function
def sums_layout(NT, WARPS):
    return gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, NT, 16])


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
    PARTS: gl.constexpr,
    NT: gl.constexpr,
    STAGES: gl.constexpr,
    LEAD: gl.constexpr,
    FINE: gl.constexpr,
    GATED: gl.constexpr,
    EVEN: gl.constexpr,
):
    """PARTS neighbouring tiles, [BN, NT] each: RUNS ranges of STEPS steps each, from column `begin` on, added
    in order.
    """
    GROUPS: gl.constexpr = BN // (8 * WARPS)
    LAST: gl.constexpr = RUNS * STEPS - 1
    LW: gl.constexpr = weight_layout(
        1, GROUPS, WARPS, 2 if FORMAT == PLAIN else 1, 2 if FORMAT == PLAIN else 4
    )
    SUMS: gl.constexpr = sums_layout(NT, WARPS)
    A: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    gl.static_assert(RUNS == 1 or STEPS % STAGES == 0, "the buffers must divide a range")
    gl.static_assert(FORMAT != BLOCK or PARTS == 1, "a product and its sum leave no registers for two parts")
    buffers = ()
    full = ()
    for _ in gl.static_range(STAGES):
        buffers = buffers + (gl.allocate_shared_memory(gl.bfloat16, [NT, COLUMNS], xd.layout),)
        barrier = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
        mbarrier.init(barrier, count=1)
        full = full + (barrier,)
    wps = ()
    sps = ()
    for part in gl.static_range(PARTS):
        wp, sp = pointers(
            weight, scale, tile * PARTS + part, n, begin, K, FORMAT, BN, WARPS, GATED, EVEN, LW, SUMS
        )
        wps = wps + (wp,)
        sps = sps + (sp,)
    ring = ()
    for j in gl.static_range(LEAD):
        at = min(j // (2 * PARTS), LAST)
        ring = ring + load_half(wps[j % PARTS], sps[j % PARTS], at, j // PARTS % 2, FORMAT)
    # Weights are on their way; only now what the kernel before has written is needed.
    gdc_wait()
    for j in gl.static_range(STAGES - 1):
        mbarrier.expect(full[j], NT * COLUMNS * 2, pred=j <= LAST)
    gl.thread_barrier()
    for j in gl.static_range(STAGES - 1):
        tma.async_copy_global_to_shared(xd, [row, begin + j * COLUMNS], full[j], buffers[j], pred=j <= LAST)
    none = gl.full([BN, NT], 0.0, gl.float32, SUMS)
    nones = (none,) * PARTS
    totals = nones
    # Where the total does not fit the registers beside the sums of a range (and the product of a block).
    MOST: gl.constexpr = 32 if FORMAT == BLOCK else 64  # sums a thread
    SHARED: gl.constexpr = RUNS > 1 and PARTS * BN * NT // (32 * WARPS) > MOST
    kept = ()
    if SHARED:
        for part in gl.static_range(PARTS):
            kept = kept + (
                gl.allocate_shared_memory(gl.float32, [BN, NT], gl.SwizzledSharedLayout(8, 1, 8, [1, 0])),
            )
            kept[part].store(none)
    for run in range(RUNS):
        accs = nones
        for i in range(STEPS // STAGES):
            for j in gl.static_range(STAGES):
                turn = run * (STEPS // STAGES) + i
                if FORMAT == BLOCK:
                    acc, ring = one_block(
                        accs[0], ring, buffers, full, xd, row, begin, wps, sps,
                        turn * STAGES + j, turn & 1, j, LAST, FORMAT, GROUPS, WARPS, NT, LEAD, FINE, LW, A,
                    )  # fmt: skip
                    accs = (acc,)
                else:
                    accs, ring = one_step(
                        accs, ring, buffers, full, xd, row, begin, wps, sps,
                        turn * STAGES + j, turn & 1, j, LAST, FORMAT, GROUPS, WARPS, NT, LEAD, FINE, LW, A,
                    )  # fmt: skip
        for j in gl.static_range(STEPS % STAGES):
            if FORMAT == BLOCK:
                acc, ring = one_block(
                    accs[0], ring, buffers, full, xd, row, begin, wps, sps,
                    STEPS // STAGES * STAGES + j, (STEPS // STAGES) & 1, j, LAST, FORMAT, GROUPS, WARPS, NT,
                    LEAD, FINE, LW, A,
                )  # fmt: skip
                accs = (acc,)
            else:
                accs, ring = one_step(
                    accs, ring, buffers, full, xd, row, begin, wps, sps,
                    STEPS // STAGES * STAGES + j, (STEPS // STAGES) & 1, j, LAST, FORMAT, GROUPS, WARPS, NT,
                    LEAD, FINE, LW, A,
                )  # fmt: skip
        if FORMAT == BLOCK:
            pass
        elif PARTS == 1:
            accs = (warpgroup_mma_wait(0, [accs[0]]),)
        else:
            accs = warpgroup_mma_wait(0, [accs[0], accs[1]])
        sums = ()
        for part in gl.static_range(PARTS):
            if SHARED:
                kept[part].store(kept[part].load(SUMS) + accs[part])
                sums = sums + (none,)
            elif RUNS == 1:
                sums = sums + (accs[part],)
            else:
                sums = sums + (totals[part] + accs[part],)
        totals = sums
    if SHARED:
        totals = ()
        for part in gl.static_range(PARTS):
            totals = totals + (kept[part].load(SUMS),)
    for j in gl.static_range(STAGES):
        mbarrier.invalidate(full[j])
    return totals
