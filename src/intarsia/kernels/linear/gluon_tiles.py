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
    split_words,
    stream,
    weight_layout,
    without,
    word_operand,
)

COLUMNS = gl.constexpr(128)  # of a step


@gluon.constexpr_function
def sums_layout(NT, WARPS):
    return gl.NVMMADistributedLayout([3, 0], [WARPS, 1], [16, NT, 16])


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
def ahead(
    ring, wps, sps, step, UNIT: gl.constexpr, LAST: gl.constexpr, LEAD: gl.constexpr, FORMAT: gl.constexpr
):
    """The ring without its oldest unit, and with the one LEAD units after unit UNIT of a step.

    A unit is half a step of one part; those of a step come half by half, and part by part within a half.
    """
    PARTS: gl.constexpr = len(wps)
    NEXT: gl.constexpr = UNIT + LEAD
    PART: gl.constexpr = NEXT % PARTS
    HALF: gl.constexpr = NEXT // PARTS % 2
    at = gl.minimum(step + NEXT // (2 * PARTS), LAST)
    return ring[2:] + load_half(wps[PART], sps[PART], at, HALF, FORMAT)


@gluon.jit
def refill(full, buffers, xd, row, begin, step, STAGE: gl.constexpr, LAST: gl.constexpr, NT: gl.constexpr):
    """Fetch x into the buffer of the step before, once every warp is past it."""
    STAGES: gl.constexpr = len(buffers)
    FREE: gl.constexpr = (STAGE + STAGES - 1) % STAGES
    more = step + (STAGES - 1) <= LAST
    mbarrier.expect(full[FREE], NT * COLUMNS * 2, pred=more)
    gl.thread_barrier()
    tma.async_copy_global_to_shared(
        xd, [row, begin + (step + STAGES - 1) * COLUMNS], full[FREE], buffers[FREE], pred=more
    )


@gluon.jit
def multiply_finely(
    total,
    words,
    scale,
    buffer,
    HALF: gl.constexpr,
    FRESH: gl.constexpr,
    FORMAT: gl.constexpr,
    GROUPS: gl.constexpr,
    WARPS: gl.constexpr,
    LW: gl.constexpr,
    A: gl.constexpr,
):
    """Add the product of a unit of codes to `total`, or begin with it when FRESH; part of it is on its way.

    Sixteen columns are decoded at a time, while those before them multiply: what a warp does after a product
    from registers begins when those registers are read.
    """
    parts = split_words(words)
    if FORMAT == MXFP8:
        factors = exponent_pairs(scale)
    else:
        factors = gl.full([1, GROUPS, 8 * WARPS, 1, 4], LIFT, gl.int32, without(LW, 5, 6))
    for i in gl.static_range(4):
        a = word_operand(parts[i], factors, GROUPS, WARPS, A)
        b = buffer.slice(HALF * 64 + i * 16, 16, 1).permute([1, 0])
        total = warpgroup_mma(a, b, total, use_acc=not (FRESH and i == 0), is_async=True)
        if i < 3:
            total = warpgroup_mma_wait(1, [total])
    return total


@gluon.jit
def one_step(
    accs,
    ring,
    buffers,
    full,
    xd,
    row,
    begin,
    wps,
    sps,
    step,
    phase,
    STAGE: gl.constexpr,
    LAST: gl.constexpr,
    FORMAT: gl.constexpr,
    GROUPS: gl.constexpr,
    WARPS: gl.constexpr,
    NT: gl.constexpr,
    LEAD: gl.constexpr,
    FINE: gl.constexpr,
    LW: gl.constexpr,
    A: gl.constexpr,
):
    """128 columns more, for each part."""
    PARTS: gl.constexpr = len(wps)
    for unit in gl.static_range(2 * PARTS):
        if not FINE:
            a = half_operand(ring[0], ring[1], FORMAT, GROUPS, WARPS, LW, A)
        if unit == 0:
            mbarrier.wait(full[STAGE], phase)
        if FINE:
            acc = multiply_finely(
                accs[0], ring[0], ring[1], buffers[STAGE], unit // PARTS, False, FORMAT, GROUPS, WARPS, LW, A
            )
        else:
            b = buffers[STAGE].slice(unit // PARTS * 64, 64, 1).permute([1, 0])
            acc = warpgroup_mma(a, b, accs[0], is_async=True)
        accs = accs[1:] + (acc,)
        if PARTS == 1:
            accs = (warpgroup_mma_wait(1, [accs[0]]),)
        else:
            accs = warpgroup_mma_wait(1, [accs[0], accs[1]])
        if unit == 0:
            refill(full, buffers, xd, row, begin, step, STAGE, LAST, NT)
        ring = ahead(ring, wps, sps, step, unit, LAST, LEAD, FORMAT)
    return accs, ring


@gluon.jit
def one_block(
    acc,
    ring,
    buffers,
    full,
    xd,
    row,
    begin,
    wps,
    sps,
    step,
    phase,
    STAGE: gl.constexpr,
    LAST: gl.constexpr,
    FORMAT: gl.constexpr,
    GROUPS: gl.constexpr,
    WARPS: gl.constexpr,
    NT: gl.constexpr,
    LEAD: gl.constexpr,
    FINE: gl.constexpr,
    LW: gl.constexpr,
    A: gl.constexpr,
):
    """One block of columns more. Its product must be complete before its scale can be added."""
    factor = ring[1]
    product = gl.full(acc.type.shape, 0.0, gl.float32, acc.type.layout)
    for half in gl.static_range(2):
        if not FINE:
            a = half_operand(ring[0], factor, FORMAT, GROUPS, WARPS, LW, A)
        if half == 0:
            mbarrier.wait(full[STAGE], phase)
        if FINE:
            product = multiply_finely(
                product, ring[0], factor, buffers[STAGE], half, half == 0, FORMAT, GROUPS, WARPS, LW, A
            )
        else:
            b = buffers[STAGE].slice(half * 64, 64, 1).permute([1, 0])
            product = warpgroup_mma(a, b, product, use_acc=half > 0, is_async=True)
        if half == 0:
            refill(full, buffers, xd, row, begin, step, STAGE, LAST, NT)
        ring = ahead(ring, wps, sps, step, half, LAST, LEAD, FORMAT)
    product = warpgroup_mma_wait(0, [product])
    return gl.fma(product, factor, acc), ring


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
