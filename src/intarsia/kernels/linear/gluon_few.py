# mypy: ignore-errors
# ruff: noqa: RET505
"""x W^T for up to 16 rows of x: weights go from memory through registers into mma.sync.

A program takes BN rows of one weight and all rows of x. Its warps are RANGES x WARPS: K is cut into RANGES
consecutive ranges, and a range is one chain of sums in order of K; the ranges are added in order at the end,
through shared memory. Words of DEPTH steps are on their way at any time, in a ring of registers.

With 128 x 128 blocks a step is one block of K: its product is formed from zero and then added, times the
block's float32 scale, in one rounding.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from intarsia.kernels.linear.fragments import swiglu
from intarsia.kernels.linear.gluon_sums import sums


@gluon.constexpr_function
def store_layout(ROWS, NUM_WARPS):
    """Neighbouring lanes hold neighbouring rows of the weight, which are neighbours in the output."""
    lanes = min(32, ROWS)
    return gl.BlockedLayout([1, 1], [lanes, 32 // lanes], [1, NUM_WARPS], [0, 1])


@gluon.jit
def added(
    parts,
    LIMIT: gl.constexpr,
    RANGES: gl.constexpr,
    BN: gl.constexpr,
    NT: gl.constexpr,
    GATED: gl.constexpr,
    NUM_WARPS: gl.constexpr,
):
    """The ranges added in order: [BN, NT], or the SwiGLU [BN / 2, NT] of its halves when GATED."""
    if RANGES == 1:
        if GATED:
            gate, up = gl.split(gl.permute(gl.reshape(parts, [2, BN // 2, NT]), [1, 2, 0]))
            return swiglu(gate, up, LIMIT)
        else:
            return gl.reshape(parts, [BN, NT])
    else:
        ROWS: gl.constexpr = BN // 2 if GATED else BN
        LY: gl.constexpr = store_layout(ROWS, NUM_WARPS)
        shared = gl.allocate_shared_memory(
            gl.float32, [RANGES * BN, NT], gl.SwizzledSharedLayout(1, 1, 1, [1, 0])
        )
        shared.store(gl.reshape(parts, [RANGES * BN, NT]))
        y = shared.slice(0, ROWS, 0).load(LY)
        for i in gl.static_range(1, RANGES):
            y = y + shared.slice(i * BN, ROWS, 0).load(LY)
        if GATED:
            up = shared.slice(ROWS, ROWS, 0).load(LY)
            for i in gl.static_range(1, RANGES):
                up = up + shared.slice(i * BN + ROWS, ROWS, 0).load(LY)
            y = swiglu(y, up, LIMIT)
        return y


@gluon.jit
def store(out, stride, y, tile, n, real, rows, first_row):
    """Rows from `real` on are written as zeros."""
    LY: gl.constexpr = y.type.layout
    column = tile * y.type.shape[0] + gl.arange(0, y.type.shape[0], layout=gl.SliceLayout(1, LY))
    row = gl.expand_dims(first_row + gl.arange(0, y.type.shape[1], layout=gl.SliceLayout(0, LY)), 0)
    y = gl.where(row < real, y, 0.0).to(out.dtype.element_ty)
    column = gl.expand_dims(column, 1)
    gl.store(out + row.to(gl.int64) * stride + column, y, mask=(row < rows) & (column < n))


@gluon.jit
def write(out, stride, y, tile, n, real, rows, MORE: gl.constexpr):
    """Rows of y, and zeros in the tile of rows after them where MORE."""
    store(out, stride, y, tile, n, real, rows, 0)
    if MORE:
        store(out, stride, y, tile, n, 0, rows, y.type.shape[1])


@gluon.jit
def few(
    xs,
    weights,
    scales,
    outs,
    strides,
    real,
    rows,
    x_stride,
    LIMIT: gl.constexpr,
    NS: gl.constexpr,
    FIRST: gl.constexpr,
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
    MORE: gl.constexpr,
):
    """The program's share of `few_rows`. MORE: there are rows of padding beyond NT."""
    COUNT: gl.constexpr = len(weights)
    program = gl.program_id(0)
    x, weight, scale, tile, n = xs[0], weights[0], scales[0], program, NS[0]
    for i in gl.static_range(1, COUNT):
        later = program >= FIRST[i]
        if len(xs) > 1:
            x = gl.where(later, xs[i], x)
        weight = gl.where(later, weights[i], weight)
        scale = gl.where(later, scales[i], scale)
        tile = gl.where(later, program - FIRST[i], tile)
        n = gl.where(later, NS[i], n)
    parts = sums(
        x,
        weight,
        scale,
        tile,
        n,
        x_stride,
        gl.maximum(real, 1),
        K,
        FORMAT,
        RANGES,
        WARPS,
        BN,
        NT,
        CHUNKS,
        DEPTH,
        AHEAD,
        RELEASES,
        GATED,
        EVEN,
    )
    y = added(parts, LIMIT, RANGES, BN, NT, GATED, RANGES * WARPS)
    HALVES: gl.constexpr = 2 if GATED else 1
    for i in gl.static_range(COUNT):
        if COUNT == 1:
            write(outs[0], strides[0], y, tile, NS[0] // HALVES, real, rows, MORE)
        elif (program >= FIRST[i]) & (program < FIRST[i + 1]):
            write(outs[i], strides[i], y, tile, NS[i] // HALVES, real, rows, MORE)


@gluon.jit(do_not_specialize=["rows"])
def few_rows(
    xs,
    weights,
    scales,
    outs,
    strides,
    used,
    rows,
    x_stride,
    LIMIT: gl.constexpr,
    NS: gl.constexpr,
    FIRST: gl.constexpr,
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
    """outs[i] [rows, NS[i]] with row stride strides[i] = xs[i] [rows, K] (or the only one) weights[i]^T.

    Words of x and of the weights are int32; scales are bytes of exponents, or float32 of 128 x 128 blocks.
    FIRST: the first program of each matrix, and the number of programs. GATED: the one weight is gate over
    up, and the output their SwiGLU, of half as many columns. EVEN: every matrix is a whole number of tiles.
    `used`: None, or a pointer to the count of rows that are real. RELEASES: the next launch may begin once
    the one before this is over.
    """
    if used is None:
        few(
            xs, weights, scales, outs, strides, rows, rows, x_stride, LIMIT, NS, FIRST,
            K, FORMAT, RANGES, WARPS, BN, NT, CHUNKS, DEPTH, AHEAD, RELEASES, GATED, EVEN, False,
        )  # fmt: skip
    else:
        real = gl.minimum(gl.load(used), rows)
        if NT == 8:
            few(
                xs, weights, scales, outs, strides, real, rows, x_stride, LIMIT, NS, FIRST,
                K, FORMAT, RANGES, WARPS, BN, 8, CHUNKS, DEPTH, AHEAD, RELEASES, GATED, EVEN, False,
            )  # fmt: skip
        elif real <= NT // 2:
            few(
                xs, weights, scales, outs, strides, real, rows, x_stride, LIMIT, NS, FIRST,
                K, FORMAT, RANGES, WARPS, BN, NT // 2, CHUNKS, DEPTH, AHEAD, RELEASES, GATED, EVEN, True,
            )  # fmt: skip
        else:
            few(
                xs, weights, scales, outs, strides, real, rows, x_stride, LIMIT, NS, FIRST,
                K, FORMAT, RANGES, WARPS, BN, NT, CHUNKS, DEPTH, AHEAD, RELEASES, GATED, EVEN, False,
            )  # fmt: skip
