"""Sigmoid and SiLU whose bits do not depend on where in a tensor a value lies.

torch computes most of a CPU tensor with vector instructions, and what is left over of each thread's share one
value at a time; in its own sigmoid and SiLU the two disagree in the last bit of some values (measured: 4 % of
them). Exponential and division do not, so both are formed from those.
"""

import torch
from torch import Tensor


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + torch.exp(-x))


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x)."""
    return x / (1 + torch.exp(-x))
