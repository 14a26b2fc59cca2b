"""The first half of a SwiGLU: a product with gate and up, clamped and multiplied."""

import torch
from torch import Tensor

from intarsia.kernels.choice import GLUON, choose
from intarsia.kernels.linear import gluon
from intarsia.kernels.linear.product import case_of, linear
from intarsia.kernels.weights import Weight


def linear_swiglu(x: Tensor, gate_up: Weight, limit: float, *, used: Tensor | None = None) -> Tensor:
    """swiglu(x @ gate_up^T) with clamp `limit`: rows `x` [R, K], `gate_up` [2 I, K] with gate rows first;
    returns [R, I] in the dtype of `x`. `used` is as for `linear`.

    On a GPU the product is not rounded before the activation where one kernel does both.
    """
    if choose(case_of(x, gate_up)) == GLUON and not gluon.refuse_halves(gate_up):
        out = torch.empty(x.shape[0], gate_up.shape[0] // 2, dtype=x.dtype, device=x.device)
        gluon.launch([x], [gate_up], [out], used=used, limit=limit)
        return out
    return activate(linear(x, gate_up, used=used), limit)


def activate(product: Tensor, limit: float) -> Tensor:
    """The SwiGLU of a product that is there, as experts have it."""
    from intarsia.kernels.experts import swiglu  # experts are built on this package

    return swiglu(product, limit)
