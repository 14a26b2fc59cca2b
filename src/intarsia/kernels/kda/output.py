"""The norm and gate on what the delta rule reads."""

import torch
from torch import Tensor

from intarsia.kernels.elementwise import sigmoid
from intarsia.kernels.norm import rms_norm


def gated_norm(o: Tensor, gate: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """RMS norm per head of `o` [R, H, V] times sigmoid of `gate` [R, H * V]; rounded once, to `dtype`."""
    normed = rms_norm(o.float(), weight, eps)
    return (normed.flatten(1) * sigmoid(gate.float())).to(dtype)
