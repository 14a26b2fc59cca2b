"""Rows of a step for tests of single operations."""

from collections.abc import Sequence

import torch
from torch import Tensor

from intarsia.core.rows import padded_count
from intarsia.kernels.rows import Piece, Rows, rows_of


def page_table(streams: int, pages: int, order: Sequence[int] | None = None) -> Tensor:
    """int32 [streams, pages]: by default pages of different streams alternate."""
    physical = range(streams * pages) if order is None else order
    return torch.tensor(list(physical), dtype=torch.int32).view(pages, streams).T.contiguous()


def step(*parts: tuple[int, int, int], recurrent: bool = False, table: Tensor | None = None) -> Rows:
    """Rows of parts (stream, position, count), all in one form."""
    streams = 1 + max(stream for stream, _, _ in parts)
    pieces = [Piece(stream, position, [0] * count, recurrent) for stream, position, count in parts]
    return rows_of(pieces, page_table(streams, 8) if table is None else table)


def padded(x: Tensor, fill: float = torch.nan) -> Tensor:
    """`x` with padding rows of NaN, so that anything they leak into shows it."""
    missing = padded_count(x.shape[0]) - x.shape[0]
    return torch.cat([x, x.new_full((missing, *x.shape[1:]), fill)])


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def error(got: Tensor, expected: Tensor) -> float:
    """The largest difference relative to the largest number expected. Infinite where any of `got` is NaN, as
    outputs are that nobody wrote: a NaN would be lost in the largest of several errors.
    """
    largest = (got.double() - expected.double()).abs().max() / expected.double().abs().max()
    return torch.inf if largest.isnan() else float(largest)
