# mypy: ignore-errors
"""The MTP layer's input rows, one half of a row a program."""

import triton
import triton.language as tl

from intarsia.kernels.norm.triton_norm import rms


@triton.jit
def join_rows(
    tokens,
    positions,
    table,
    table_stride,
    hidden,
    hidden_stride,
    token_weight,
    hidden_weight,
    out,
    eps,
    WIDTH: tl.constexpr,
    SIZE: tl.constexpr,
):
    """out [R, 2 WIDTH], contiguous. The grid is [R, 2]: embedding, hidden row."""
    row = tl.program_id(0).to(tl.int64)
    half = tl.program_id(1)
    c = tl.arange(0, SIZE)
    inside = c < WIDTH
    if half == 0:
        begun = tl.load(positions + row) != 0
        token = tl.load(tokens + row)
        value = tl.load(table + token * table_stride + c, mask=inside & begun, other=0.0).to(tl.float32)
        factor = tl.load(token_weight + c, mask=inside, other=0.0).to(tl.float32)
    else:
        value = tl.load(hidden + row * hidden_stride + c, mask=inside, other=0.0).to(tl.float32)
        factor = tl.load(hidden_weight + c, mask=inside, other=0.0).to(tl.float32)
    normed = rms(value, factor, eps, WIDTH).to(out.dtype.element_ty)
    tl.store(out + (2 * row + half) * WIDTH + c, normed, mask=inside)
