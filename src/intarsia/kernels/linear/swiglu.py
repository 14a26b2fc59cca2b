"""The first half of a SwiGLU: a product with gate and up, clamped and multiplied."""

from torch import Tensor

from intarsia.kernels.linear.product import linear
from intarsia.kernels.weights import Weight


def linear_swiglu(x: Tensor, gate_up: Weight, limit: float, *, used: Tensor | None = None) -> Tensor:
    """swiglu(x @ gate_up^T) with clamp `limit`: rows `x` [R, K], `gate_up` [2 I, K] with gate rows first;
    returns [R, I] in the dtype of `x`. `used` is as for `linear`.
    """
    from intarsia.kernels.experts import swiglu  # experts are built on this package

    return swiglu(linear(x, gate_up, used=used), limit)
