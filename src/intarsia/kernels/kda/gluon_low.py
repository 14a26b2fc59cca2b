# mypy: ignore-errors
# ruff: noqa: RUF005
"""b, f_a and g_a of up to eight rows: a range of columns and 16 rows of one matrix a program of one warp.

Programs are that small so that they find room beside those of q, k, v, which hold most registers of every
multiprocessor. What they leave are the sums of every range, which whoever reads them adds in order: the bits
are those of the kernels of single products, where a program has all ranges.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from intarsia.kernels.codes import PLAIN
from intarsia.kernels.linear.fragments import (
    LIFT,
    index,
    stream,
    weight_layout,
    weight_operand,
    without,
    x_layout,
    x_operand,
)

CHUNKS = gl.constexpr(2)  # of 32 columns that are multiplied before the next ones
STEP = gl.constexpr(32)  # words of two numbers


@gluon.jit
def multiply(total, words, x, LW: gl.constexpr, LX: gl.constexpr):
    """`total` [1, 16, 8] and the product of one step."""
    SUMS: gl.constexpr = total.type.layout
    none = gl.full([1, 2, 8, CHUNKS, 4], LIFT, gl.int32, without(LW, 5, 6))
    a = weight_operand(words, none, PLAIN, 1, 2, 1, CHUNKS, LW, gl.DotOperandLayout(0, SUMS, 2))
    b = x_operand(x, PLAIN, 1, 1, CHUNKS, LX, gl.DotOperandLayout(1, SUMS, 2))
    return mma_v2(a, b, total)


@gluon.jit(do_not_specialize=["rows"])
def low_rows(
    x,
    x_stride,
    b,
    f_a,
    g_a,
    parts,
    used,
    rows,
    H: gl.constexpr,
    WIDTH: gl.constexpr,
    K: gl.constexpr,
    RANGES: gl.constexpr,
    DEPTH: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """parts [RANGES, rows, H + 2 WIDTH]: the ranges of x [rows, K] times b [H, K], f_a and g_a [WIDTH, K],
    side by side. Words of x and of the matrices are int32. Rows from `used` on, where it is given, are not
    written.

    The grid is [tiles of 16 rows of the matrices, RANGES].
    """
    N: gl.constexpr = H + 2 * WIDTH
    ROW: gl.constexpr = K // 2
    STEPS: gl.constexpr = ROW // (RANGES * STEP)
    LW: gl.constexpr = weight_layout(1, 2, 1, CHUNKS, 2)
    LP: gl.constexpr = without(LW, 6)
    LX: gl.constexpr = x_layout(1, 1, 1, CHUNKS, 4)
    LQ: gl.constexpr = without(LX, 6)
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [1, 1, 1], [1, 16, 8])
    LY: gl.constexpr = gl.SliceLayout(0, SUMS)
    begin = gl.program_id(0) * 16
    part = gl.program_id(1)
    weight, own = b, begin
    if begin >= H + WIDTH:
        weight, own = g_a, begin - (H + WIDTH)
    elif begin >= H:
        weight, own = f_a, begin - H
    wp = weight + own * ROW + part * (ROW // RANGES)
    wp = wp + (index(8, LP, 2, 6) * ROW + index(4, LP, 4, 6) * 4)
    wp = wp + (index(2, LP, 1, 6) * (8 * ROW) + index(CHUNKS, LP, 3, 6) * 16) + index(4, LP, 5, 6)
    ring = ()
    for j in gl.static_range(DEPTH):
        ring = ring + (stream(wp + j * STEP),)
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    real = rows
    if used is not None:
        real = gl.minimum(gl.load(used), rows)
    row = gl.minimum(index(8, LQ, 2, 6), gl.maximum(real, 1) - 1)
    xp = x + part * (ROW // RANGES) + (row * x_stride + index(4, LQ, 4, 6) * 4)
    xp = xp + (index(CHUNKS, LQ, 3, 6) * 16 + index(4, LQ, 5, 6))
    total = gl.full([1, 16, 8], 0.0, gl.float32, SUMS)
    for i in gl.static_range(STEPS):
        total = multiply(total, ring[0], gl.load(xp + i * STEP), LW, LX)
        ring = ring[1:]
        if i + DEPTH < STEPS:
            ring = ring + (stream(wp + (i + DEPTH) * STEP),)
    n = gl.expand_dims(begin + gl.arange(0, 16, layout=gl.SliceLayout(1, LY)), 1)
    at = gl.expand_dims(gl.arange(0, 8, layout=gl.SliceLayout(0, LY)), 0)
    total = gl.convert_layout(gl.reshape(total, [16, 8]), LY, assert_trivial=True)
    gl.store(parts + (part * rows + at) * N + n, total, mask=(at < real) & (n >= 0))
