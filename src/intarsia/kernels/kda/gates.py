"""What the delta rule takes besides the convolved columns."""

import torch
from torch import Tensor

from intarsia.kernels.elementwise import sigmoid

UNIT_EPS = 1e-6


def log_decay(f: Tensor, a_log: Tensor, dt_bias: Tensor, lower_bound: float) -> Tensor:
    """The log decay g = lower_bound * sigmoid(exp(A_log) * (f + dt_bias)), float32 [R, H, K], from `f` [R, H
    * K].

    a_log [H] acts per head, dt_bias [H * K] per channel. With the bound -5, g lies in (-5, 0).
    """
    heads = a_log.shape[0]
    shifted = (f.float() + dt_bias.float()).view(f.shape[0], heads, -1)
    return lower_bound * sigmoid(a_log.float().exp().view(1, heads, 1) * shifted)


def unit_heads(x: Tensor, heads: int) -> Tensor:
    """`x` [R, H * K] as [R, H, K] with every head divided by sqrt(sum of squares + 1e-6), float32."""
    split = x.float().view(x.shape[0], heads, -1)
    return split * torch.rsqrt(split.square().sum(-1, keepdim=True) + UNIT_EPS)
