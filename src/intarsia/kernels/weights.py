"""Stored weights as operands: decoded inside the operation that uses them, never kept."""

import torch
from torch import Tensor

from intarsia import formats
from intarsia.formats.stored import Stored

Weight = Stored | Tensor


def dense(weight: Weight, dtype: torch.dtype) -> Tensor:
    """The matrix that `weight` stands for, in `dtype`; a plain tensor is only cast."""
    if isinstance(weight, Tensor):
        return weight.to(dtype)
    return formats.get(weight.format).decode(weight, dtype)
