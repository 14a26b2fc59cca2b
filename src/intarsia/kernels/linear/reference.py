"""y = x W^T with W decoded on the fly."""

import torch
from torch import Tensor
from torch.nn import functional as F

from intarsia.kernels.tiles import in_row_tiles
from intarsia.kernels.weights import Weight, dense


def linear(x: Tensor, weight: Weight, *, out_dtype: torch.dtype | None = None) -> Tensor:
    """Rows `x` [R, K] times a stored matrix [N, K]; returns [R, N] in `out_dtype`, by default that of `x`.

    With `out_dtype` float32 the product is formed in float32, as partial sums of split matrices need it.
    """
    compute = out_dtype or x.dtype
    matrix = dense(weight, compute)
    return in_row_tiles(lambda rows: F.linear(rows, matrix), x.to(compute))
