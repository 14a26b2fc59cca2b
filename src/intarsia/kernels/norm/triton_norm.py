# mypy: ignore-errors
"""Norms of one row a program, in float32 with one rounding at the end."""

import triton
import triton.language as tl


@triton.jit
def rms(x, weight, eps, WIDTH: tl.constexpr):
    """Float32 `x` of which all beyond WIDTH are zero, normed and times `weight`."""
    return x * tl.rsqrt(tl.sum(x * x, 0) / WIDTH + eps) * weight


@triton.jit
def centered(x, weight, bias, inside, eps, WIDTH: tl.constexpr):
    """Mean and variance of float32 `x` removed, which is zero where not `inside`; `weight` and `bias`."""
    shifted = tl.where(inside, x - tl.sum(x, 0) / WIDTH, 0.0)
    return shifted * tl.rsqrt(tl.sum(shifted * shifted, 0) / WIDTH + eps) * weight + bias


@triton.jit
def norm_rows(x, weight, bias, out, x_stride, eps, WIDTH: tl.constexpr, SIZE: tl.constexpr):
    """out [R, WIDTH], contiguous; the layer norm where there is a bias. The grid is [R]."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, SIZE)
    inside = c < WIDTH
    value = tl.load(x + row * x_stride + c, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(weight + c, mask=inside, other=0.0).to(tl.float32)
    if bias is None:
        y = rms(value, factor, eps, WIDTH)
    else:
        shift = tl.load(bias + c, mask=inside, other=0.0).to(tl.float32)
        y = centered(value, factor, shift, inside, eps, WIDTH)
    tl.store(out + row * WIDTH + c, y.to(out.dtype.element_ty), mask=inside)
