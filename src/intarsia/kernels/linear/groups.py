"""Products with several matrices, in one launch on a GPU where a kernel takes them together."""

from collections.abc import Sequence

import torch
from torch import Tensor

from intarsia.kernels.linear.product import linear
from intarsia.kernels.weights import Weight

Dtypes = Sequence[torch.dtype | None]


def linears(
    x: Tensor, weights: Sequence[Weight], out_dtypes: Dtypes | None = None, *, used: Tensor | None = None
) -> list[Tensor]:
    """The same rows `x` [R, K] times each matrix [N_i, K]: a list of [R, N_i].

    `out_dtypes` and `used` are as for `linear`, a type a matrix. A result's bits are those of the group: they
    do not depend on R, and may differ in rounding from those of `linear` with that matrix alone.
    """
    return linears_apart([x] * len(weights), weights, out_dtypes, used=used)


def linears_apart(
    xs: Sequence[Tensor],
    weights: Sequence[Weight],
    out_dtypes: Dtypes | None = None,
    *,
    used: Tensor | None = None,
) -> list[Tensor]:
    """Rows `xs[i]` [R, K] times the matrix `weights[i]` [N_i, K] for each i: the blocks of a block-diagonal
    matrix. Otherwise as `linears`.
    """
    dtypes = out_dtypes or [None] * len(weights)
    return [
        linear(x, weight, out_dtype=dtype, used=used)
        for x, weight, dtype in zip(xs, weights, dtypes, strict=True)
    ]


def linear_stack(
    x: Tensor,
    weights: Sequence[Weight],
    *,
    out_dtype: torch.dtype | None = None,
    used: Tensor | None = None,
) -> Tensor:
    """Rows `x` [R, K] times matrices one below the other: [R, sum of N_i], contiguous. Otherwise as
    `linears`.
    """
    return torch.cat(linears(x, weights, [out_dtype] * len(weights), used=used), -1)
