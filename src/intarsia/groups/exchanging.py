"""What all groups of several ranks have in common, whatever carries their exchanges."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from intarsia.core.errors import IntarsiaError
from intarsia.groups.agreement import Store
from intarsia.groups.errors import RanksDivergedError, lost
from intarsia.groups.group import add_in_order, side_by_side
from intarsia.groups.status import LOST, SILENT_STATUS, Status
from intarsia.kernels.exchange import Exchange

T = TypeVar("T")
Parts = Callable[[], list[Tensor]]
ROW_TILE = 16
"""Rows that kernels take together."""
_LOW_BITS = (1 << 63) - 1


class RankGroup(ABC):
    """One rank of several. Partial sums are gathered, then added in order.

    `status` hears of every exchange, so that whoever watches can tell a rank that waits from one that is
    waited for. Calls raise RankLostError when another rank is gone or does not come in time.
    """

    def __init__(
        self, rank: int, ranks: int, device: torch.device, store: Store, status: Status = SILENT_STATUS
    ) -> None:
        """`store` carries messages that are no tensors."""
        self.rank, self.ranks = rank, ranks
        self.store = store
        self._device = device
        self._status = status
        self._failing = threading.Lock()
        self._when_lost: list[Callable[[], None]] = []
        self.piece_rows: int | None = None
        """Rows of a piece where sums are cut (see `cut`); None where that does not pay."""
        self.divide_from: int | None = None
        """Rows from which a step's residual streams are divided among ranks; None: never."""
        self.failure: IntarsiaError | None = None
        """Why no further exchange is possible."""

    def when_lost(self, act: Callable[[], None]) -> None:
        """Call `act`, from any thread, once a rank is found to be lost.

        Over a ring that is found at once, else at the next exchange.
        """
        self._when_lost.append(act)

    @property
    def host_ranks(self) -> int:
        """All of them, unless exchanges are launched on a GPU like any other kernel."""
        return self.ranks

    @abstractmethod
    def _start(self, own: Tensor) -> Parts:
        """Begin to gather a contiguous tensor; the call of the result waits. Both may raise RuntimeError."""

    def sum_in_rank_order(self, partial: Tensor, rows: int | None = None) -> Tensor:
        """The ranks' float32 partial sums added one after another, rank 0 first.

        With `rows` only the first ones travel; the others stay this rank's own.
        """
        return self.begin_sum(partial, rows)()

    def cut(self, rows: int) -> list[slice]:
        """The pieces of rows whose sums are best begun one by one. Their bits are those of the whole."""
        size = self.piece_rows if self.piece_rows is not None and rows >= 2 * self.piece_rows else rows
        return [slice(begin, min(begin + size, rows)) for begin in range(0, rows, size)]

    def begin_sum(self, partial: Tensor, rows: int | None = None) -> Callable[[], Tensor]:
        """Begin such a sum; the call of the result waits for it."""
        if partial.dtype != torch.float32:
            raise TypeError(f"partial sums are float32, not {partial.dtype}")
        if rows is None or rows >= len(partial):
            parts = self._begin(partial)
            return lambda: add_in_order(parts())
        some = self._begin(partial[: max(rows, 1)])
        return lambda: torch.cat([add_in_order(some()), partial[max(rows, 1) :]])

    def sum_where_read(self, partial: Tensor, rows: int | None = None) -> tuple[Tensor, Exchange | None]:
        """The sums in rank order; none is left to whoever reads them."""
        return self.sum_in_rank_order(partial, rows), None

    def divided(self, rows: int) -> int | None:
        """How many rows' streams each rank keeps; whole tiles of rows, so that their bits stay the same. None
        also where the last rank would have no rows: no operation takes none."""
        if self.divide_from is None or rows < self.divide_from:
            return None
        each = -(-rows // (ROW_TILE * self.ranks)) * ROW_TILE
        return each if each * (self.ranks - 1) < rows else None

    def sum_own(self, partial: Tensor, each: int) -> Tensor:
        """The sums of the rows that this rank keeps, added in rank order."""
        return self.sum_in_rank_order(partial)[self.rank * each : (self.rank + 1) * each]

    def gather_rows(self, own: Tensor, each: int, rows: int) -> Tensor:
        """All rows, of which each rank has those it keeps."""
        padded = own.new_zeros(each, *own.shape[1:])
        padded[: len(own)] = own
        return torch.cat(self.gather(padded))[:rows]

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's tensor, rank 0 first; all of one shape and dtype."""
        return self._begin(tensor)()

    def _begin(self, tensor: Tensor) -> Parts:
        if self.failure is not None:
            raise self.failure
        parts = self._guarded(lambda: self._start(tensor.contiguous()))

        def finish() -> list[Tensor]:
            self._status.enter()
            result = self._guarded(parts)
            self._status.leave()
            return result

        return finish

    def _guarded(self, act: Callable[[], T]) -> T:
        problem: RuntimeError | None = None
        try:
            return act()
        except RuntimeError as error:
            problem = error
        raise self.fail(problem)

    def fail(self, problem: RuntimeError) -> IntarsiaError:
        """The error of an exchange that failed, which every further one will raise too."""
        failure = lost(problem, self.rank, self.ranks)
        with self._failing:
            first, self.failure = self.failure is None, self.failure or failure
        if first:
            self._status.tell(f"{LOST}: {failure.found}")
            for act in self._when_lost:
                act()
        return self.failure

    def gather_columns(self, tensor: Tensor, widths: Sequence[int]) -> Tensor:
        """The ranks' columns side by side; narrower ones are padded on the way."""
        most = max(widths)
        padded = torch.nn.functional.pad(tensor, (0, most - tensor.shape[1]))
        return side_by_side(self.gather(padded), widths)

    def largest(self, numbers: Tensor) -> Tensor:
        """The largest over all ranks of each number; NaN where one is."""
        return torch.stack(self.gather(numbers)).amax(0)

    def require_all(self) -> None:
        """Raise what ended the exchanges; where the host waits in each, it has found out there."""
        if self.failure is not None:
            raise self.failure

    def barrier(self, what: str) -> None:
        """Return once every rank is here."""
        self._status.tell(f"waits for the other ranks: {what}")
        self._begin(torch.zeros(1, dtype=torch.int64, device=self._device))()

    def check_equal(self, what: str, value: int) -> None:
        """Raise RanksDivergedError unless all ranks say the same value (its low 63 bits are compared)."""
        self._status.tell(what)
        own = torch.tensor([value & _LOW_BITS], dtype=torch.int64, device=self._device)
        parts = self._begin(own)()
        self._status.enter()  # with a GPU it is here that the host waits for the others
        values = [int(part) for part in parts]
        self._status.leave()
        if len(set(values)) > 1:
            found = ", ".join(f"{value:016x} on rank {rank}" for rank, value in enumerate(values))
            common = max(set(values), key=values.count)
            odd = [rank for rank, value in enumerate(values) if value != common]
            self.failure = RanksDivergedError(
                what,
                found=found,
                expected="one value on all ranks",
                action=_suspects(odd, self.ranks),
            )
            raise self.failure


def _suspects(odd: Sequence[int], ranks: int) -> str:
    if len(odd) > (ranks - 1) // 2:
        return "no majority says which rank is wrong"
    return "rank " + " and ".join(map(str, odd)) + " differs from the others"
