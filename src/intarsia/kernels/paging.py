"""Addresses in paged caches: a token's row lies in the physical page that its stream's table names."""

import torch
from torch import Tensor

from intarsia.kernels.rows import Rows


def physical_rows(table: Tensor, positions: Tensor, page: int) -> Tensor:
    """Row numbers int64 in a cache viewed as [pages * page, width]; `table` int32 [pages] is one stream's."""
    positions = positions.to(torch.int64)
    return table[positions // page].to(torch.int64) * page + positions % page


def write_rows(cache: Tensor, values: Tensor, rows: Rows) -> None:
    """Store a value a row in `cache` [pages + 1, page, width] at its position; padding rows write nothing."""
    real = rows.real
    page = cache.shape[1]
    positions = rows.positions[:real].to(torch.int64)
    pages = rows.page_table[rows.streams[:real].to(torch.int64), positions // page].to(torch.int64)
    cache.view(-1, cache.shape[2])[pages * page + positions % page] = values[:real].to(cache.dtype)
