# mypy: ignore-errors
# ruff: noqa: RET505, RUF005
"""A program's sums of `gluon_few`: pointers, the ring of words on their way, and the chain of products."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from intarsia.kernels.codes import BLOCK, MXFP8, PLAIN
from intarsia.kernels.linear.fragments import (
    LIFT,
    exponent_pairs,
    index,
    stream,
    weight_layout,
    weight_operand,
    without,
    x_layout,
    x_operand,
)


@gluon.jit
def multiply(
    total,
    words,
    scale,
    xs,
    FORMAT: gl.constexpr,
    RANGES: gl.constexpr,
    GROUPS: gl.constexpr,
    WARPS: gl.constexpr,
    TILES: gl.constexpr,
    CHUNKS: gl.constexpr,
    LW: gl.constexpr,
    LX: gl.constexpr,
):
    """`total` [RANGES, rows of the weight, rows of x] and the product of one step."""
    SUMS: gl.constexpr = total.type.layout
    if FORMAT == MXFP8:
        factors = exponent_pairs(scale)
    else:
        factors = gl.full([RANGES, GROUPS, 8 * WARPS, CHUNKS, 4], LIFT, gl.int32, without(LW, 5, 6))
    a = weight_operand(
        words, factors, FORMAT, RANGES, GROUPS, WARPS, CHUNKS, LW, gl.DotOperandLayout(0, SUMS, 2)
    )
    b = x_operand(xs, FORMAT, RANGES, TILES, CHUNKS, LX, gl.DotOperandLayout(1, SUMS, 2))
    if FORMAT == BLOCK:
        product = mma_v2(a, b, gl.full(total.type.shape, 0.0, gl.float32, SUMS))
        total = gl.fma(product, gl.expand_dims(scale, 2), total)
    else:
        total = mma_v2(a, b, total)
    return total


@gluon.jit
def load_scale(pointers, FORMAT: gl.constexpr):
    """The scales of one step, or a zero in their place where a format has none."""
    if FORMAT == MXFP8:
        return gl.load(pointers).to(gl.int32)
    elif FORMAT == BLOCK:
        return gl.load(pointers)
    else:
        return 0


@gluon.jit
def scale_pointers(
    scale,
    tile,
    n,
    K: gl.constexpr,
    FORMAT: gl.constexpr,
    RANGES: gl.constexpr,
    GROUPS: gl.constexpr,
    WARPS: gl.constexpr,
    CHUNKS: gl.constexpr,
    GATED: gl.constexpr,
    EVEN: gl.constexpr,
    LW: gl.constexpr,
    SUMS: gl.constexpr,
):
    """Pointers to the first step's scales: exponents [RANGES, GROUPS, 8 WARPS, CHUNKS, 4], or one float a
    range (and half, when GATED).
    """
    BN: gl.constexpr = 8 * GROUPS * WARPS
    if FORMAT == MXFP8:
        L: gl.constexpr = without(LW, 5, 6)
        E: gl.constexpr = K // 32
        column = index(RANGES, L, 0, 5) * (E // RANGES) + index(4, L, 4, 5) // 2
        if EVEN:
            first = scale + (tile * (BN // 2) if GATED else tile * BN).to(gl.int64) * E
            near = first + (index(8 * WARPS, L, 2, 5) * E + column)
            return near + (group_rows(n, GROUPS, WARPS, GATED, L, 5) * E + index(CHUNKS, L, 3, 5) * 2)
        else:
            row = tile * BN + index(8 * WARPS, L, 2, 5) + group_rows(n, GROUPS, WARPS, GATED, L, 5)
            return scale + gl.minimum(row, n - 1) * E + column + index(CHUNKS, L, 3, 5) * 2
    elif FORMAT == BLOCK:
        B: gl.constexpr = K // 128
        LB: gl.constexpr = without(SUMS, 2)
        begin = gl.expand_dims(gl.arange(0, RANGES, layout=without(SUMS, 1, 2)), 1) * (B // RANGES)
        if GATED:
            half = gl.expand_dims(gl.arange(0, BN, layout=gl.SliceLayout(0, LB)), 0) // 8 % 2
            return scale + (tile * (BN // 2) // 128 * B + begin + half * (n // 256 * B))
        else:
            return scale + (tile * BN // 128 * B + begin)
    else:
        return scale


@gluon.jit
def group_rows(
    n, GROUPS: gl.constexpr, WARPS: gl.constexpr, GATED: gl.constexpr, L: gl.constexpr, RANK: gl.constexpr
):
    """The row at which each group of eight rows a warp begins; gate and up rows by turns when GATED."""
    group = index(GROUPS, L, 1, RANK)
    if GATED:
        return group // 2 * (8 * WARPS) + group % 2 * (n // 2)
    else:
        return group * (8 * WARPS)


@gluon.jit
def sums(
    x,
    weight,
    scale,
    tile,
    n,
    x_stride,
    rows,
    K: gl.constexpr,
    FORMAT: gl.constexpr,
    RANGES: gl.constexpr,
    WARPS: gl.constexpr,
    BN: gl.constexpr,
    NT: gl.constexpr,
    CHUNKS: gl.constexpr,
    DEPTH: gl.constexpr,
    AHEAD: gl.constexpr,
    RELEASES: gl.constexpr,
    GATED: gl.constexpr,
    EVEN: gl.constexpr,
):
    """[RANGES, BN, NT] in the order of the weight's rows: gate rows first when GATED."""
    GROUPS: gl.constexpr = BN // (8 * WARPS)
    TILES: gl.constexpr = NT // 8
    ROW: gl.constexpr = K // 2 if FORMAT == PLAIN else K // 4  # words
    EACH: gl.constexpr = 2 if FORMAT == PLAIN else 4
    X_WORDS: gl.constexpr = 4 if FORMAT == PLAIN else 8
    STEP: gl.constexpr = 16 * CHUNKS
    X_STEP: gl.constexpr = 4 * X_WORDS * CHUNKS
    S_STEP: gl.constexpr = 2 * CHUNKS if FORMAT == MXFP8 else 1
    STEPS: gl.constexpr = ROW // (RANGES * STEP)
    gl.static_assert(STEPS % DEPTH == 0 and AHEAD <= DEPTH, "the rings must divide the steps")
    LW: gl.constexpr = weight_layout(RANGES, GROUPS, WARPS, CHUNKS, EACH)
    LP: gl.constexpr = without(LW, 6)
    LX: gl.constexpr = x_layout(RANGES, TILES, WARPS, CHUNKS, X_WORDS)
    LQ: gl.constexpr = without(LX, 6)
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [RANGES, WARPS, 1], [1, 16, 8])
    # What depends on the lane is added first, and constants last: they become part of the instructions.
    column = index(RANGES, LP, 0, 6) * (ROW // RANGES) + index(4, LP, 4, 6) * 4
    if EVEN:
        first = weight + (tile * (BN // 2) if GATED else tile * BN).to(gl.int64) * ROW
        wp = first + (index(8 * WARPS, LP, 2, 6) * ROW + column)
        wp = wp + (group_rows(n, GROUPS, WARPS, GATED, LP, 6) * ROW + index(CHUNKS, LP, 3, 6) * 16)
        wp = wp + index(4, LP, 5, 6)
    else:
        row = tile * BN + index(8 * WARPS, LP, 2, 6) + group_rows(n, GROUPS, WARPS, GATED, LP, 6)
        wp = weight + (gl.minimum(row, n - 1) * ROW + column)
        wp = wp + (index(CHUNKS, LP, 3, 6) * 16 + index(4, LP, 5, 6))
    sp = scale_pointers(scale, tile, n, K, FORMAT, RANGES, GROUPS, WARPS, CHUNKS, GATED, EVEN, LW, SUMS)
    ring = ()
    for j in gl.static_range(DEPTH):
        ring = ring + (stream(wp + j * STEP), load_scale(sp + j * S_STEP, FORMAT))
    # Weights are on their way; only now what the kernel before has written is needed.
    gdc_wait()
    if RELEASES:
        gdc_launch_dependents()
    row = gl.minimum(index(TILES, LQ, 1, 6) * 8 + index(8, LQ, 2, 6), rows - 1)
    xp = x + (row * x_stride + index(RANGES, LQ, 0, 6) * (K // 2 // RANGES) + index(4, LQ, 4, 6) * X_WORDS)
    xp = xp + (index(CHUNKS, LQ, 3, 6) * (4 * X_WORDS) + index(X_WORDS, LQ, 5, 6))
    xs = ()
    for j in gl.static_range(AHEAD):
        xs = xs + (gl.load(xp + j * X_STEP),)
    total = gl.full([RANGES, BN, NT], 0.0, gl.float32, SUMS)
    for _ in range(STEPS // DEPTH - 1):
        for j in gl.static_range(DEPTH):
            x_now = xs[0]
            xs = xs[1:] + (gl.load(xp + (j + AHEAD) * X_STEP),)
            total = multiply(
                total, ring[0], ring[1], x_now, FORMAT, RANGES, GROUPS, WARPS, TILES, CHUNKS, LW, LX
            )
            later = stream(wp + (DEPTH + j) * STEP)
            ring = ring[2:] + (later, load_scale(sp + (DEPTH + j) * S_STEP, FORMAT))
        wp += DEPTH * STEP
        sp += DEPTH * S_STEP
        xp += DEPTH * X_STEP
    for j in gl.static_range(DEPTH):
        x_now = xs[0]
        xs = xs[1:]
        if j + AHEAD < DEPTH:
            xs = xs + (gl.load(xp + (j + AHEAD) * X_STEP),)
        total = multiply(
            total, ring[2 * j], ring[2 * j + 1], x_now, FORMAT, RANGES, GROUPS, WARPS, TILES, CHUNKS, LW, LX
        )
    total = gl.reshape(total, [RANGES, GROUPS // 2, WARPS, 2, 8, NT])
    if GATED:
        total = gl.permute(total, [0, 3, 1, 2, 4, 5])
    else:
        total = gl.permute(total, [0, 1, 3, 2, 4, 5])
    return gl.reshape(total, [RANGES, BN, NT])
