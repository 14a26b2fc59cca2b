# mypy: ignore-errors
"""A residual addition and the norm after it, one row a program."""

import triton
import triton.language as tl

from intarsia.kernels.norm.triton_norm import rms


@triton.jit
def add_norm_rows(x, x_stride, y, y_stride, weight, total, out, eps, WIDTH: tl.constexpr, SIZE: tl.constexpr):
    """total, out [R, WIDTH], contiguous. The grid is [R]."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, SIZE)
    inside = c < WIDTH
    value = tl.load(x + row * x_stride + c, mask=inside, other=0.0).to(tl.float32)
    value += tl.load(y + row * y_stride + c, mask=inside, other=0.0)
    rounded = value.to(total.dtype.element_ty)
    tl.store(total + row * WIDTH + c, rounded, mask=inside)
    factor = tl.load(weight + c, mask=inside, other=0.0).to(tl.float32)
    normed = rms(rounded.to(tl.float32), factor, eps, WIDTH)
    tl.store(out + row * WIDTH + c, normed.to(out.dtype.element_ty), mask=inside)
