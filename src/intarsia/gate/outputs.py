"""Float32 partial sums of projections cut by columns, against sums of the second packing's values."""

from dataclasses import dataclass

import numpy as np
import torch

from intarsia.gate.packer import Packed
from intarsia.kernels.linear import linear
from intarsia.kernels.weights import Weight

ROWS = 16
EPS = float(np.finfo(np.float32).eps)


@dataclass(frozen=True, slots=True)
class OutputCheck:
    """The largest error of a rank's partial sums, in parts of what rounding allows."""

    name: str
    rank: int
    ranks: int
    share_of_bound: float

    @property
    def ok(self) -> bool:
        """True while rounding alone explains the error."""
        return self.share_of_bound <= 1


def check_output(name: str, held: Weight, packed: Packed, rank: int, ranks: int) -> OutputCheck:
    """Multiply random rows by what a rank holds, in float32, and by the packed values, in float64.

    The bound is that of any order of summation: n eps times the sum of magnitudes, for n columns.
    """
    values = packed.values.reshape(packed.shape[-2], packed.shape[-1]).astype(np.float64)
    x = torch.randn(ROWS, values.shape[1], generator=torch.Generator().manual_seed(len(name)))
    device = held.device if isinstance(held, torch.Tensor) else held["weight"].device
    ours = linear(x.to(device), held, out_dtype=torch.float32).cpu().double().numpy()
    wide = x.double().numpy()
    bound = values.shape[1] * EPS * (np.abs(wide) @ np.abs(values).T) + 1e-30
    with np.errstate(invalid="ignore"):
        worst = float(np.max(np.abs(ours - wide @ values.T) / bound))
    return OutputCheck(name, rank, ranks, worst if worst == worst else float("inf"))
