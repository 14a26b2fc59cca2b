# mypy: ignore-errors
"""Decay and gate of few rows from the 128 numbers that each has for them, in one launch.

A program has a head's 128 rows of one matrix in registers, from before the launch before it has ended, and
multiplies a tile of rows with it. The order of additions is that of the kernels of single products. Where
those numbers come as sums of ranges (`gluon_low.py`), it adds them first, and beta's.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

D = gl.constexpr(128)
PRODUCT = gl.constexpr(gl.NVMMADistributedLayout([2, 0], [4, 1], [16, 8]))
STORED = gl.constexpr(gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0]))
# Of every 32 columns each of the four lanes that share a row has eight, in weights as in rows.
WEIGHT = gl.constexpr(
    gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [0, 32], [0, 64], [8, 0], [64, 0]],
        [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        [[16, 0], [32, 0]],
        [],
        [128, 128],
    )
)


@gluon.constexpr_function
def rows_layout(count):
    """[count, 128]; every warp holds all of it."""
    registers = [[0, 1], [0, 2], [0, 4], [0, 32], [0, 64]]
    row = 8
    while row < count:
        registers.append([row, 0])
        row *= 2
    lanes = [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[0, 0], [0, 0]], [], [count, 128])


@gluon.jit
def in_order(x):
    """Columns in the order in which the kernels of single products take wide weights (see `fragments`)."""
    x = gl.reshape(x, [x.shape[0], 4, 4, 2, 2, 2])
    return gl.reshape(gl.permute(x, [0, 1, 3, 4, 2, 5]), [x.shape[0], D])


@gluon.jit
def added(parts, stride, mask, RANGES: gl.constexpr):
    """The ranges of what `parts` points to, in order."""
    total = gl.load(parts, mask=mask, other=0)
    for i in gl.static_range(1, RANGES):
        total = total + gl.load(parts + i * stride, mask=mask, other=0)
    return total


@gluon.jit(do_not_specialize=["rows"])
def gate_rows(
    f,
    f_stride,
    g,
    g_stride,
    f_b,
    g_b,
    decay,
    gate,
    beta,
    used,
    rows,
    H: gl.constexpr,
    TILE: gl.constexpr,
    RANGES: gl.constexpr,
    OVERLAP: gl.constexpr,
):
    """decay = f f_b^T and gate = g g_b^T: [rows, H D] of [rows, D] and [H D, D], bfloat16. Rows from `used`
    on, where it is given, are zeros.

    With RANGES f is [RANGES, rows, H + 2 D], float32: sums of beta, f and g, which are added in order, and f
    and g rounded; beta [rows, H], float32, is written then. The grid is [2 H, tiles of rows].
    """
    ROWS: gl.constexpr = rows_layout(TILE)
    A: gl.constexpr = gl.DotOperandLayout(0, PRODUCT, 2)
    B: gl.constexpr = gl.DotOperandLayout(1, PRODUCT, 2)
    head = gl.program_id(0) % H
    second = gl.program_id(0) >= H
    matrix = gl.where(second, g_b, f_b) + head * (D * D)
    at = gl.arange(0, D, layout=gl.SliceLayout(1, WEIGHT))[:, None] * D
    weight = gl.load(matrix + at + gl.arange(0, D, layout=gl.SliceLayout(0, WEIGHT))[None, :])
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    real = rows
    if used is not None:
        real = gl.minimum(gl.load(used), rows)
    first = gl.program_id(1) * TILE
    if RANGES:
        N: gl.constexpr = H + 2 * D
        row = first + gl.arange(0, TILE, layout=gl.SliceLayout(1, STORED))
        column = gl.arange(0, D, layout=gl.SliceLayout(0, STORED))[None, :]
        x = f + row[:, None] * N + (H + gl.where(second, D, 0)) + column
        total = added(x, rows * N, (row[:, None] < real) & (column >= 0), RANGES)
        strength = added(f + row * N + head, rows * N, row < real, RANGES)
        gl.store(beta + row * H + head, strength, mask=(row < rows) & (not second))
        value = gl.convert_layout(total.to(gl.bfloat16), ROWS)
    else:
        row = first + gl.arange(0, TILE, layout=gl.SliceLayout(1, ROWS))[:, None]
        column = gl.arange(0, D, layout=gl.SliceLayout(0, ROWS))[None, :]
        x = gl.where(second, g, f) + row * gl.where(second, g_stride, f_stride)
        value = gl.load(x + column, mask=(row < real) & (column >= 0), other=0)
    a = gl.convert_layout(in_order(weight), A, assert_trivial=True)
    b = gl.convert_layout(gl.permute(in_order(value), [1, 0]), B, assert_trivial=True)
    total = mma_v2(a, b, gl.full([D, TILE], 0.0, gl.float32, PRODUCT)).to(gl.bfloat16)
    total = gl.convert_layout(gl.permute(total, [1, 0]), STORED)
    row = first + gl.arange(0, TILE, layout=gl.SliceLayout(1, STORED))[:, None]
    column = head * D + gl.arange(0, D, layout=gl.SliceLayout(0, STORED))[None, :]
    y = gl.where(second, gate, decay) + row.to(gl.int64) * (H * D)
    gl.store(y + column, total, mask=(row < rows) & (column >= 0))
