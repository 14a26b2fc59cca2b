"""Ranks over torch.distributed: NCCL between GPUs, gloo between CPUs."""

import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from intarsia.core.errors import IntarsiaError
from intarsia.groups.errors import RankLostError, RanksDivergedError
from intarsia.groups.group import add_in_order, side_by_side
from intarsia.groups.status import LOST, SILENT_STATUS, Status


class TorchGroup:
    """One rank of a process group that is already formed. Partial sums are gathered, then added in order.

    `status` hears of every exchange, so that whoever watches can tell a rank that waits from one that is
    waited for. Calls raise RankLostError when another rank is gone or does not come within `timeout`.
    """

    def __init__(
        self,
        group: Any,
        device: torch.device,
        *,
        timeout: timedelta,
        status: Status = SILENT_STATUS,
        store: Any = None,
    ) -> None:
        """`store` is the key-value store the ranks met at, for messages that are no tensors."""
        self.rank = group.rank()
        self.ranks = group.size()
        self._group = group
        self._device = device
        self._timeout = timeout
        self._status = status
        self.store = store
        self.failure: IntarsiaError | None = None
        """Why no further exchange is possible."""

    def sum_in_rank_order(self, partial: Tensor) -> Tensor:
        """The ranks' float32 partial sums added one after another, rank 0 first."""
        if partial.dtype != torch.float32:
            raise TypeError(f"partial sums are float32, not {partial.dtype}")
        return add_in_order(self.gather(partial))

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's tensor, rank 0 first; all of one shape and dtype."""
        if self.failure is not None:
            raise self.failure
        own = tensor.contiguous()
        parts = torch.empty((self.ranks, *own.shape), dtype=own.dtype, device=own.device)
        self._status.enter()
        problem = ""
        try:
            if own.is_cuda:
                # Waits on the stream, not on the host: NCCL's own watchdog knows the timeout.
                self._group._allgather_base(parts, own).wait()
            else:
                self._group.allgather([list(parts.unbind())], [own]).wait(self._timeout)
        except RuntimeError as error:
            problem = str(error)
        if problem:
            self._status.tell(f"{LOST}: {_first_line(problem)}")
            self.failure = RankLostError(
                f"rank {self.rank} of {self.ranks}",
                found=f"an exchange that failed: {_first_line(problem)}",
                expected="every rank at the same exchange",
                action="look for the first message of another rank",
            )
            raise self.failure
        self._status.leave()
        return list(parts.unbind())

    def gather_columns(self, tensor: Tensor, widths: Sequence[int]) -> Tensor:
        """The ranks' columns side by side; narrower ones are padded on the way."""
        most = max(widths)
        padded = torch.nn.functional.pad(tensor, (0, most - tensor.shape[1]))
        return side_by_side(self.gather(padded), widths)

    def barrier(self, what: str) -> None:
        """Return once every rank is here."""
        self._status.tell(f"waits for the other ranks: {what}")
        self.gather(torch.zeros(1, dtype=torch.int64, device=self._device))

    def check_equal(self, what: str, value: int) -> None:
        """Raise RanksDivergedError unless all ranks say the same value (its low 63 bits are compared)."""
        own = torch.tensor([value & (1 << 63) - 1], dtype=torch.int64, device=self._device)
        values = [int(part) for part in self.gather(own)]
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


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:300] if text.strip() else "no reason given"


def seconds(value: float) -> timedelta:
    """A timeout; infinity becomes the longest there is."""
    return timedelta(days=365) if math.isinf(value) else timedelta(seconds=value)
