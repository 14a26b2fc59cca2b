"""Gather, then decode: only the rows that are asked for are widened."""

import torch
from torch import Tensor

from intarsia.formats.stored import Stored
from intarsia.kernels.weights import Weight, dense


def embed(tokens: Tensor, weight: Weight, dtype: torch.dtype) -> Tensor:
    """Embedding rows [R, D] in `dtype` of `tokens` int64 [R]."""
    if isinstance(weight, Stored) and tuple(weight.tensors) == ("weight",):
        weight = weight.tensors["weight"]
    if isinstance(weight, Tensor):
        return weight[tokens].to(dtype)
    return dense(weight, dtype)[tokens]
