# mypy: ignore-errors
# ruff: noqa: SIM114
"""x W^T for more rows of x: weights go from memory through registers into wgmma, x through shared memory.

The sums are those of `gluon_few`, in its order: the same k16 products, ranges and blocks of K. A program
takes BN rows of one weight and NT rows of x. It does all ranges one after another, or, where there are few
rows of x (APART), one of them, whose sums `arrange.add_parts` adds to the others.

A step is 128 columns in two halves. While one half multiplies, the next is decoded; x arrives by TMA in
STAGES buffers, and words of DEPTH steps are on their way in registers. Each buffer is an allocation of its
own, for the compiler to see that they do not overlap.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.language.extra.cuda import gdc_wait

from intarsia.kernels.linear.fragments import swiglu
from intarsia.kernels.linear.gluon_tiles import COLUMNS, tile_sums


@gluon.constexpr_function
def store_layout(ROWS, NT, WARPS):
    """Eight rows of the weight a thread, which are neighbours in the output."""
    lanes = ROWS // 8
    return gl.BlockedLayout([8, 1], [lanes, 32 // lanes], [1, WARPS], [0, 1])


@gluon.jit
def store_tile(out, stride, y, first, n, row, rows, EVEN: gl.constexpr, WARPS: gl.constexpr):
    """y [rows of the weight, NT] as rows of the output."""
    ROWS: gl.constexpr = y.type.shape[0]
    NT: gl.constexpr = y.type.shape[1]
    LY: gl.constexpr = store_layout(ROWS, NT, WARPS)
    y = gl.convert_layout(y.to(out.dtype.element_ty), LY)
    column = gl.expand_dims(first + gl.arange(0, ROWS, layout=gl.SliceLayout(1, LY)), 1)
    r = gl.expand_dims(row + gl.arange(0, NT, layout=gl.SliceLayout(0, LY)), 0)
    inside = r < rows
    if not EVEN:
        inside = inside & (column < n)
    gl.store(out + (r.to(gl.int64) * stride + column), y, mask=inside)


@gluon.jit(do_not_specialize=["rows"])
def many_rows(
    xd,
    weights,
    scales,
    outs,
    strides,
    used,
    rows,
    LIMIT: gl.constexpr,
    NS: gl.constexpr,
    FIRST: gl.constexpr,
    K: gl.constexpr,
    FORMAT: gl.constexpr,
    RANGES: gl.constexpr,
    APART: gl.constexpr,
    WARPS: gl.constexpr,
    BN: gl.constexpr,
    NT: gl.constexpr,
    STAGES: gl.constexpr,
    DEPTH: gl.constexpr,
    GATED: gl.constexpr,
    EVEN: gl.constexpr,
):
    """As `few_rows`, of x [rows, K] as `arrange_rows` leaves it, described by `xd`.

    APART: the programs of the last dimension are ranges; output i is float32 [RANGES, rows, strides[i]], and
    its padding rows are not written. GATED is for one matrix whose ranges are not apart. Every program waits
    for the kernel before, which may still run when this one begins.
    """
    COUNT: gl.constexpr = len(weights)
    HALVES: gl.constexpr = 2 if GATED else 1
    row = gl.program_id(0) * NT
    program = gl.program_id(1)
    begin = gl.program_id(2) * (K // RANGES)
    RUNS: gl.constexpr = 1 if APART else RANGES
    weight, scale, tile, n = weights[0], scales[0], program, NS[0]
    for i in gl.static_range(1, COUNT):
        later = program >= FIRST[i]
        weight = gl.where(later, weights[i], weight)
        scale = gl.where(later, scales[i], scale)
        tile = gl.where(later, program - FIRST[i], tile)
        n = gl.where(later, NS[i], n)
    real = rows
    if used is not None:
        real = gl.minimum(gl.load(used), rows)
    FEWER: gl.constexpr = BN // HALVES
    if row < real:
        y = tile_sums(
            xd, weight, scale, tile, n, row, begin, K, FORMAT, RUNS, K // RANGES // COLUMNS, WARPS, BN, NT,
            STAGES, DEPTH, GATED, EVEN,
        )  # fmt: skip
        if GATED:
            y = gl.permute(gl.reshape(y, [BN // 16, 2, 8, NT]), [0, 2, 3, 1])
            gate, up = gl.split(gl.reshape(y, [BN // 2, NT, 2]))
            result = swiglu(gate, up, LIMIT)
        else:
            result = y
        for i in gl.static_range(COUNT):
            out = outs[i] + gl.program_id(2).to(gl.int64) * rows * strides[i]
            if COUNT == 1:
                store_tile(out, strides[i], result, tile * FEWER, NS[i] // HALVES, row, rows, EVEN, WARPS)
            elif (program >= FIRST[i]) & (program < FIRST[i + 1]):
                store_tile(out, strides[i], result, tile * FEWER, NS[i] // HALVES, row, rows, EVEN, WARPS)
    else:
        gdc_wait()
        if not APART:
            zeros = gl.full([FEWER, NT], 0.0, gl.float32, store_layout(FEWER, NT, WARPS))
            for i in gl.static_range(COUNT):
                if COUNT == 1:
                    store_tile(
                        outs[i], strides[i], zeros, tile * FEWER, NS[i] // HALVES, row, rows, EVEN, WARPS
                    )
                elif (program >= FIRST[i]) & (program < FIRST[i + 1]):
                    store_tile(
                        outs[i], strides[i], zeros, tile * FEWER, NS[i] // HALVES, row, rows, EVEN, WARPS
                    )
