"""A residual addition with the norm that follows it."""

from torch import Tensor

from intarsia.kernels.choice import TRITON, Case, choose
from intarsia.kernels.device import on_device_of, power_of_two
from intarsia.kernels.norm import launch, reference


def add_norm(x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x + y, rounded once to the dtype of `x` [R, D], and its RMS norm in that dtype; y float32 [R, D]."""
    if choose(Case("norm", (), x.dtype, x.device, (x.shape[-1],))) == TRITON:
        return _launch(x, y, weight, eps)
    total = (x.float() + y).to(x.dtype)
    return total, reference.rms_norm(total, weight, eps)


def _launch(x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    from intarsia.kernels.norm import triton_residual as kernels

    rows, width = x.shape
    total, out = x.new_empty(rows, width), x.new_empty(rows, width)
    with on_device_of(x):
        kernels.add_norm_rows[(rows,)](
            x,
            x.stride(0),
            y,
            y.stride(0),
            weight,
            total,
            out,
            float(eps),
            WIDTH=width,
            SIZE=power_of_two(width),
            num_warps=launch.warps_for(width),
        )
    return total, out
