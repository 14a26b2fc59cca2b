"""RMS norm and layer norm."""

from torch import Tensor

from intarsia.kernels.choice import TRITON, Case, choose
from intarsia.kernels.norm import launch, reference
from intarsia.kernels.norm.residual import add_norm

__all__ = ["add_norm", "layer_norm", "rms_norm"]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, in the dtype of `x`."""
    if choose(_case(x)) == TRITON:
        return launch.launch(x, weight, None, eps)
    return reference.rms_norm(x, weight, eps)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Mean and variance over the last dimension removed, then weight and bias; in the dtype of `x`."""
    if choose(_case(x)) == TRITON:
        return launch.launch(x, weight, bias, eps)
    return reference.layer_norm(x, weight, bias, eps)


def _case(x: Tensor) -> Case:
    return Case("norm", (), x.dtype, x.device, (x.shape[-1],))
