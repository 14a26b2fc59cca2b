"""Products with several matrices, in one launch on a GPU where a kernel takes them together."""

from collections.abc import Sequence

import torch
from torch import Tensor

from intarsia.kernels.choice import GLUON, choose
from intarsia.kernels.linear import gluon
from intarsia.kernels.linear.product import case_of, linear
from intarsia.kernels.weights import Weight

Dtypes = Sequence[torch.dtype | None]


def linears(
    x: Tensor, weights: Sequence[Weight], out_dtypes: Dtypes | None = None, *, used: Tensor | None = None
) -> list[Tensor]:
    """The same rows `x` [R, K] times each matrix [N_i, K]: a list of [R, N_i].

    `out_dtypes` and `used` are as for `linear`, a type a matrix. A result's bits are those of the group: they
    do not depend on R, and may differ in rounding from those of `linear` with that matrix alone.
    """
    return _products([x], weights, out_dtypes, used)


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
    return _products(xs, weights, out_dtypes, used)


def linear_stack(
    x: Tensor,
    weights: Sequence[Weight],
    *,
    out_dtype: torch.dtype | None = None,
    used: Tensor | None = None,
    releases: bool = False,
) -> Tensor:
    """Rows `x` [R, K] times matrices one below the other: [R, sum of N_i], contiguous. Otherwise as
    `linears`. `releases`: on a GPU the launch after the product of a few rows may begin while it runs.
    """
    if _together([x], weights):
        sizes = [weight.shape[0] for weight in weights]
        out = torch.empty(x.shape[0], sum(sizes), dtype=out_dtype or x.dtype, device=x.device)
        outs = torch.split(out, sizes, -1)
        gluon.launch([x], weights, outs, used=used, releases=releases)
        return out
    return torch.cat([linear(x, weight, out_dtype=out_dtype, used=used) for weight in weights], -1)


def _products(
    xs: Sequence[Tensor], weights: Sequence[Weight], out_dtypes: Dtypes | None, used: Tensor | None
) -> list[Tensor]:
    """One launch a format; the order of additions is that of all matrices of the format together."""
    dtypes = out_dtypes or [None] * len(weights)
    results: dict[int, Tensor] = {}
    formats = [case_of(xs[0], weight).formats for weight in weights]
    for name in dict.fromkeys(formats):
        where = [i for i, found in enumerate(formats) if found == name]
        mine, group = [xs[min(i, len(xs) - 1)] for i in where], [weights[i] for i in where]
        apart = mine if len(xs) > 1 else xs
        if _together(apart, group):
            outs = [
                torch.empty(x.shape[0], weights[i].shape[0], dtype=dtypes[i] or x.dtype, device=x.device)
                for i, x in zip(where, mine, strict=True)
            ]
            gluon.launch(apart, group, outs, used=used)
        else:
            outs = [
                linear(x, weights[i], out_dtype=dtypes[i], used=used)
                for i, x in zip(where, mine, strict=True)
            ]
        results |= dict(zip(where, outs, strict=True))
    return [results[i] for i in range(len(weights))]


def _together(xs: Sequence[Tensor], weights: Sequence[Weight]) -> bool:
    """Whether one launch of the register kernels takes all matrices."""
    if not xs[0].is_cuda or len(weights) > gluon.MOST_MATRICES:
        return False
    cases = [case_of(xs[0], weight) for weight in weights]
    alike = len({(case.formats, case.shape[1]) for case in cases}) == 1
    layouts = {(x.shape, x.dtype) for x in xs}
    return alike and len(layouts) == 1 and all(choose(case) == GLUON for case in cases)
