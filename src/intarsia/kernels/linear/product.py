"""The product with one matrix."""

import torch
from torch import Tensor

from intarsia.kernels.choice import GLUON, TRITON, Case, choose
from intarsia.kernels.linear import gluon, launch, reference
from intarsia.kernels.weights import Weight


def linear(
    x: Tensor,
    weight: Weight,
    *,
    out_dtype: torch.dtype | None = None,
    used: Tensor | None = None,
    overlap: bool = False,
) -> Tensor:
    """Rows `x` [R, K] times a stored matrix [N, K]; returns [R, N] in `out_dtype`, by default that of `x`.

    With `out_dtype` float32 the product is formed in float32, as partial sums of split matrices need it.
    `used`, int32 [1] on the device of `x`: the count of rows that matter; of those from there on the result
    may be zeros. It saves time on a GPU and changes no bit of the rows before. `overlap`: on a GPU the
    product of a few rows may begin before the launch before it has ended, which wrote neither weights nor
    `used`.
    """
    name = choose(case_of(x, weight))
    if name == GLUON:
        out = torch.empty(x.shape[0], weight.shape[0], dtype=out_dtype or x.dtype, device=x.device)
        gluon.launch([x], [weight], [out], used=used, overlap=overlap)
        return out
    if name == TRITON:
        return launch.launch(x, weight, out_dtype)
    return reference.linear(x, weight, out_dtype=out_dtype)


def case_of(x: Tensor, weight: Weight) -> Case:
    """What is asked for, as kernels are chosen by."""
    layout = gluon.unlike_a_whole_matrix(weight) if x.is_cuda else ""
    return Case("linear", (launch.format_of(weight),), x.dtype, x.device, tuple(weight.shape), layout)
