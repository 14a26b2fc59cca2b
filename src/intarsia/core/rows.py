"""The padded-rows rule: no operation sees how many rows are really in a step.

A float32 matrix product on a CPU may pick another kernel, and with it another order of additions, for 1 to 7
rows than for more; for every multiple of 16 the bits of a row are the same (measured: `F.linear` and `bmm`,
oneDNN and MKL, 1 and 2 threads, any position inside the batch). So rows are padded to such a multiple before
the first operation, and a row's bits do not depend on what else is in the step.
"""

import torch
from torch import Tensor

ROW_MULTIPLE = 16


def padded_count(rows: int) -> int:
    """The smallest multiple of 16 that holds `rows`, at least 16."""
    return max(ROW_MULTIPLE, -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE)


def pad_rows(x: Tensor, value: float = 0) -> Tensor:
    """`x` [R, ...] with rows of `value` appended up to `padded_count(R)`; `x` itself if none is missing."""
    missing = padded_count(x.shape[0]) - x.shape[0]
    if not missing:
        return x
    return torch.cat([x, x.new_full((missing, *x.shape[1:]), value)])
