# mypy: ignore-errors
# ruff: noqa: RET505, RUF005
"""A step of `gluon_tiles`: words on their way, decoding beside products, and buffers of x filled again."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from intarsia.kernels.codes import MXFP8, PLAIN
from intarsia.kernels.linear.fragments import (
    LIFT,
    exponent_pairs,
    numbers,
    split_words,
    stream,
    without,
    word_operand,
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
def multiply_unit(
    total,
    words,
    scale,
    buffer,
    full,
    phase,
    UNIT: gl.constexpr,
    PARTS: gl.constexpr,
    FRESH: gl.constexpr,
    FORMAT: gl.constexpr,
    GROUPS: gl.constexpr,
    WARPS: gl.constexpr,
    FINE: gl.constexpr,
    LW: gl.constexpr,
    A: gl.constexpr,
):
    """Add the product of a unit to `total`, or begin with it when FRESH; it is on its way.

    The first unit of a step waits for x.
    """
    if not FINE:
        a = half_operand(words, scale, FORMAT, GROUPS, WARPS, LW, A)
    if UNIT == 0:
        mbarrier.wait(full, phase)
    if FINE:
        return multiply_finely(
            total, words, scale, buffer, UNIT // PARTS, FRESH, FORMAT, GROUPS, WARPS, LW, A
        )
    else:
        b = buffer.slice(UNIT // PARTS * 64, 64, 1).permute([1, 0])
        return warpgroup_mma(a, b, total, use_acc=not FRESH, is_async=True)


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
        acc = multiply_unit(
            accs[0], ring[0], ring[1], buffers[STAGE], full[STAGE], phase, unit, PARTS, False, FORMAT, GROUPS,
            WARPS, FINE, LW, A,
        )  # fmt: skip
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
        product = multiply_unit(
            product, ring[0], factor, buffers[STAGE], full[STAGE], phase, half, 1, half == 0, FORMAT, GROUPS,
            WARPS, FINE, LW, A,
        )  # fmt: skip
        if half == 0:
            refill(full, buffers, xd, row, begin, step, STAGE, LAST, NT)
        ring = ahead(ring, wps, sps, step, half, LAST, LEAD, FORMAT)
    product = warpgroup_mma_wait(0, [product])
    return gl.fma(product, factor, acc), ring
