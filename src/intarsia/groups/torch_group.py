"""Ranks over torch.distributed: NCCL between GPUs, gloo between CPUs."""

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from intarsia.groups.errors import RankLostError
from intarsia.groups.exchanging import Parts, RankGroup
from intarsia.groups.status import SILENT_STATUS, Status
from intarsia.kernels.exchange import Exchange, refuse


class TorchGroup(RankGroup):
    """One rank of a process group that is already formed.

    With a `peers` exchange small sums go over the GPUs' own memory; their bits are the same.
    """

    def __init__(
        self,
        group: Any,
        device: torch.device,
        *,
        timeout: timedelta,
        status: Status = SILENT_STATUS,
        store: Any = None,
        peers: Exchange | None = None,
    ) -> None:
        """An exchange may take `timeout`."""
        super().__init__(group.rank(), group.size(), device, store, status)
        self._group = group
        self._timeout = timeout
        self.peers = peers

    def begin_sum(self, partial: Tensor) -> Callable[[], Tensor]:
        """Begin a sum in rank order; over peer memory it is over at once, as far as the host is concerned."""
        peers = self.peers
        if peers is None or self.failure is not None or refuse(partial, peers.most):
            return super().begin_sum(partial)
        self._status.enter()
        total = peers.sum_in_rank_order(partial.contiguous())
        self._status.leave()
        return lambda: total

    def _start(self, own: Tensor) -> Parts:
        parts = torch.empty((self.ranks, *own.shape), dtype=own.dtype, device=own.device)
        if own.is_cuda:
            work = self._group._allgather_base(parts, own)
        else:
            work = self._group.allgather([list(parts.unbind())], [own])

        def finish() -> list[Tensor]:
            if own.is_cuda:
                work.wait()  # on the stream, not on the host: NCCL's own watchdog knows the timeout
            else:
                work.wait(self._timeout)
            return list(parts.unbind())

        return finish

    def check_equal(self, what: str, value: int) -> None:
        """As for all groups; also finds that a rank did not come to a sum over peer memory."""
        super().check_equal(what, value)
        if self.peers is not None and int(self.peers.failed):
            self.failure = RankLostError(
                f"rank {self.rank} of {self.ranks}",
                found="a sum over peer memory to which another rank did not come in time",
                expected="every rank at the same exchange",
                action="look for the first message of another rank",
            )
            raise self.failure


def seconds(value: float) -> timedelta:
    """A timeout; infinity becomes the longest there is."""
    return timedelta(days=365) if math.isinf(value) else timedelta(seconds=value)
