"""Matrix products in tiles of 16 rows, where a library would otherwise choose its kernel by the row count.

On a CPU any multiple of 16 rows gives a row the same bits (see `intarsia.core.rows`). cuBLAS may take another
kernel, with another order of additions, for 144 rows than for 16 (seen on an H200); so the reference runs
there one whole tile at a time, filled up with zeros. It is slow and exact; GPU kernels keep their own order.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from intarsia.core.rows import ROW_MULTIPLE, pad_rows


def in_row_tiles(product: Callable[..., Tensor], *operands: Tensor) -> Tensor:
    """`product(*operands)`, row for row of the operands [R, ...]; formed 16 rows at a time on a GPU."""
    count = operands[0].shape[0]
    if not operands[0].is_cuda or count == ROW_MULTIPLE:
        return product(*operands)
    tiles = zip(*(torch.split(pad_rows(operand), ROW_MULTIPLE) for operand in operands), strict=True)
    return torch.cat([product(*tile) for tile in tiles])[:count]
