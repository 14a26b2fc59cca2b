# mypy: ignore-errors
"""Before and after the products of many rows: x in the order that they multiply in, ranges added."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit(do_not_specialize=["rows"])
def arrange_rows(x, out, used, rows, x_stride, K: tl.constexpr, CODES: tl.constexpr, BR: tl.constexpr):
    """out [rows, K]: place [k16, i, lane, h] of each chunk gets column [lane, k16, h, i] for codes, and
    [lane, k16, i, h] for wider weights (see `fragments`). Rows from `used` on become zeros. The products may
    begin at once, and wait before they read.
    """
    gdc_launch_dependents()
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    column = tl.program_id(1) * 128 + tl.arange(0, 128)
    real = rows if used is None else tl.minimum(tl.load(used), rows)
    inside = (r < real)[:, None]
    value = tl.load(x + r.to(tl.int64)[:, None] * x_stride + column[None, :], mask=inside, other=0)
    if CODES:
        value = tl.reshape(value, [BR, 2, 4, 4, 2, 2])
        value = tl.permute(value, [0, 1, 3, 5, 2, 4])
    else:
        value = tl.reshape(value, [BR, 4, 4, 2, 2, 2])
        value = tl.permute(value, [0, 1, 3, 4, 2, 5])
    value = tl.reshape(value, [BR, 128])
    tl.store(out + r.to(tl.int64)[:, None] * K + column[None, :], value, mask=(r < rows)[:, None])


@triton.jit(do_not_specialize=["rows"])
def add_parts(
    parts,
    outs,
    strides,
    used,
    rows,
    range_stride,
    row_stride,
    LIMIT: tl.constexpr,
    NS: tl.constexpr,
    FIRST: tl.constexpr,
    RANGES: tl.constexpr,
    SIZE: tl.constexpr,
):
    """outs[i] [rows, NS[i]] = the ranges of parts [RANGES, rows, ..] added in order; the outputs lie side by
    side in them. With LIMIT the one output is the SwiGLU of the parts' halves. Rows from `used` on are zeros.
    """
    gdc_wait()
    row = tl.program_id(0)
    program = tl.program_id(1)
    real = rows if used is None else tl.minimum(tl.load(used), rows)
    begin = 0
    for i in tl.static_range(len(outs)):
        if (program >= FIRST[i]) & (program < FIRST[i + 1]):
            column = (program - FIRST[i]) * SIZE + tl.arange(0, SIZE)
            inside = column < NS[i]
            at = parts + row.to(tl.int64) * row_stride + begin + column
            y = ordered_sum(at, inside & (row < real), range_stride, RANGES, SIZE)
            if LIMIT is not None:
                up = ordered_sum(at + NS[i], inside & (row < real), range_stride, RANGES, SIZE)
                gate = tl.minimum(y, LIMIT)
                y = gate / (1.0 + tl.exp(-gate)) * tl.minimum(tl.maximum(up, -LIMIT), LIMIT)
            out = outs[i] + row.to(tl.int64) * strides[i] + column
            tl.store(out, y.to(outs[i].dtype.element_ty), mask=inside)
        begin += NS[i]


@triton.jit
def ordered_sum(at, inside, stride, RANGES: tl.constexpr, SIZE: tl.constexpr):
    total = tl.zeros([SIZE], tl.float32)
    for r in tl.static_range(RANGES):
        total = total + tl.load(at + r * stride, mask=inside, other=0)
    return total
