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
from intarsia.kernels.linear.gluon_steps import COLUMNS
from intarsia.kernels.linear.gluon_tiles import sums_layout, tile_sums


@gluon.constexpr_function
def store_layout(ROWS, WARPS):
    """Eight rows of the weight a thread, which are neighbours in the output."""
    lanes = ROWS // 8
    return gl.BlockedLayout([1, 8], [32 // lanes, lanes], [WARPS, 1], [1, 0])


@gluon.constexpr_function
def turned_layout(dtype, ROWS):
    """A row is swizzled as a whole where it is narrower than 128 bytes."""
    bits = dtype.primitive_bitwidth
    return gl.NVMMASharedLayout(min(128, ROWS * bits // 8), bits, 2)


@gluon.jit
def store_tile(out, stride, y, first, n, row, rows, EVEN: gl.constexpr, WARPS: gl.constexpr):
    """y [rows of the weight, NT] as rows of the output, turned in shared memory."""
    ROWS: gl.constexpr = y.type.shape[0]
    NT: gl.constexpr = y.type.shape[1]
    LY: gl.constexpr = store_layout(ROWS, WARPS)
    turned = gl.allocate_shared_memory(
        out.dtype.element_ty, [NT, ROWS], turned_layout(out.dtype.element_ty, ROWS)
    )
    turned.permute([1, 0]).store(y.to(out.dtype.element_ty))
    y = turned.load(LY)
    column = gl.expand_dims(first + gl.arange(0, ROWS, layout=gl.SliceLayout(0, LY)), 0)
    r = gl.expand_dims(row + gl.arange(0, NT, layout=gl.SliceLayout(1, LY)), 1)
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
    PARTS: gl.constexpr,
    NT: gl.constexpr,
    STAGES: gl.constexpr,
    LEAD: gl.constexpr,
    GROUP: gl.constexpr,
    FINE: gl.constexpr,
    GATED: gl.constexpr,
    EVEN: gl.constexpr,
):
    """As `few_rows`, of x [rows, K] as `arrange_rows` leaves it, described by `xd`.

    A program takes PARTS neighbouring tiles of BN rows. APART: the programs of the last dimension are ranges;
    output i is float32 [RANGES, rows, strides[i]]. GATED is for one matrix whose ranges are not apart. Every
    program waits for the kernel before, which may still run when this one begins.
    """
    COUNT: gl.constexpr = len(weights)
    HALVES: gl.constexpr = 2 if GATED else 1
    TILES: gl.constexpr = FIRST[COUNT]
    # GROUP tiles of rows go through all weights before the next ones: what runs at once shares what it reads.
    every = gl.cdiv(rows, NT)
    group = gl.program_id(0) // (GROUP * TILES)
    wide = gl.minimum(every - group * GROUP, GROUP)
    within = gl.program_id(0) - group * (GROUP * TILES)
    program = within // wide
    row = (group * GROUP + within - program * wide) * NT
    begin = gl.program_id(1) * (K // RANGES)
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
        ys = tile_sums(
            xd, weight, scale, tile, n, row, begin, K, FORMAT, RUNS, K // RANGES // COLUMNS, WARPS, BN, PARTS,
            NT, STAGES, LEAD, FINE, GATED, EVEN,
        )  # fmt: skip
    else:
        gdc_wait()
        ys = (gl.full([BN, NT], 0.0, gl.float32, sums_layout(NT, WARPS)),) * PARTS
    for part in gl.static_range(PARTS):
        if GATED:
            y = gl.permute(gl.reshape(ys[part], [BN // 16, 2, 8, NT]), [0, 2, 3, 1])
            gate, up = gl.split(gl.reshape(y, [BN // 2, NT, 2]))
            result = swiglu(gate, up, LIMIT)
        else:
            result = ys[part]
        first = (tile * PARTS + part) * FEWER
        for i in gl.static_range(COUNT):
            out = outs[i] + gl.program_id(1).to(gl.int64) * rows * strides[i]
            if COUNT == 1:
                store_tile(out, strides[i], result, first, NS[i] // HALVES, row, rows, EVEN, WARPS)
            elif (program >= FIRST[i]) & (program < FIRST[i + 1]):
                store_tile(out, strides[i], result, first, NS[i] // HALVES, row, rows, EVEN, WARPS)
