"""What a network asks of the ranks it runs on."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from intarsia.kernels.exchange import Exchange


class Group(Protocol):
    """Ranks that run the same steps on their own shares. Every call is made by all of them, in one order."""

    rank: int
    ranks: int

    @property
    def host_ranks(self) -> int:
        """Ranks whose exchanges need the host; 1 where a CUDA graph can hold them."""
        ...

    def sum_in_rank_order(self, partial: Tensor, rows: int | None = None) -> Tensor:
        """The ranks' float32 partial sums added one after another, rank 0 first: the same bits on each.

        With `rows` the others need not be summed: they are padding.
        """
        ...

    def cut(self, rows: int) -> list[slice]:
        """The pieces of rows whose sums are best begun one by one, each beside the next one's computing."""
        ...

    def begin_sum(self, partial: Tensor, rows: int | None = None) -> Callable[[], Tensor]:
        """Begin such a sum; the call of the result waits for it. What is computed in between overlaps."""
        ...

    def sum_where_read(self, partial: Tensor, rows: int | None = None) -> tuple[Tensor, Exchange | None]:
        """Such sums and None; or the partial sums, and what is to sum them where they are read."""
        ...

    def divided(self, rows: int) -> int | None:
        """How many rows' residual streams each rank keeps in a step of so many, the last ones fewer; None:
        all ranks keep all."""
        ...

    def sum_own(self, partial: Tensor, each: int) -> Tensor:
        """The sums of the rows that this rank keeps."""
        ...

    def gather_rows(self, own: Tensor, each: int, rows: int) -> Tensor:
        """All rows, of which each rank has those it keeps."""
        ...

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's tensor, rank 0 first; all of one shape and dtype."""
        ...

    def gather_columns(self, tensor: Tensor, widths: Sequence[int]) -> Tensor:
        """The ranks' columns [R, widths[rank]] side by side."""
        ...

    def largest(self, numbers: Tensor) -> Tensor:
        """The largest over all ranks of each number; NaN where one is."""
        ...

    def require_all(self) -> None:
        """Raise RankLostError if another rank did not come to an exchange that the device waited for."""
        ...

    def barrier(self, what: str) -> None:
        """Return once every rank is here."""
        ...

    def check_equal(self, what: str, value: int) -> None:
        """Raise RanksDivergedError, with every rank's value, unless all ranks say the same 64-bit value."""
        ...


class SingleRank:
    """One rank alone: nothing is exchanged, and no bit changes."""

    rank = 0
    ranks = 1
    host_ranks = 1

    def sum_in_rank_order(self, partial: Tensor, rows: int | None = None) -> Tensor:
        """The sum itself."""
        return partial

    def cut(self, rows: int) -> list[slice]:
        """All rows together."""
        return [slice(0, rows)]

    def begin_sum(self, partial: Tensor, rows: int | None = None) -> Callable[[], Tensor]:
        """The sum itself."""
        return lambda: partial

    def sum_where_read(self, partial: Tensor, rows: int | None = None) -> tuple[Tensor, Exchange | None]:
        """The sum itself."""
        return partial, None

    def divided(self, rows: int) -> int | None:
        """Nothing is divided."""
        return None

    def sum_own(self, partial: Tensor, each: int) -> Tensor:
        """The sum itself."""
        return partial

    def gather_rows(self, own: Tensor, each: int, rows: int) -> Tensor:
        """The rows themselves."""
        return own

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """The tensor itself."""
        return [tensor]

    def gather_columns(self, tensor: Tensor, widths: Sequence[int]) -> Tensor:
        """The columns themselves."""
        return tensor

    def largest(self, numbers: Tensor) -> Tensor:
        """The numbers themselves."""
        return numbers

    def require_all(self) -> None:
        """Return at once."""

    def barrier(self, what: str) -> None:
        """Return at once."""

    def check_equal(self, what: str, value: int) -> None:
        """Agree with oneself."""


SINGLE: Group = SingleRank()


def add_in_order(parts: Sequence[Tensor]) -> Tensor:
    """The parts added one after another, the first one first."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def side_by_side(parts: Sequence[Tensor], widths: Sequence[int]) -> Tensor:
    """Columns of parts that were padded to one width, without the padding."""
    return torch.cat([part[:, :width] for part, width in zip(parts, widths, strict=True)], dim=1)
