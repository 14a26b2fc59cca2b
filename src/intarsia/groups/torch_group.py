"""Ranks over torch.distributed: NCCL between GPUs, gloo between CPUs."""

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from intarsia.core.errors import IntarsiaError
from intarsia.groups.agreement import Store
from intarsia.groups.errors import LineError, plain_words
from intarsia.groups.exchanging import Parts, RankGroup
from intarsia.groups.status import SILENT_STATUS, Status
from intarsia.kernels.exchange import Exchange, refuse

DIVIDE_FROM = 1024
"""Rows of a step from which residual streams are divided among GPUs of one host."""
ANSWER = timedelta(seconds=1.5)
"""How long a rank has to say that it, too, lost an exchange."""


class TorchGroup(RankGroup):
    """One rank of a process group that is already formed.

    With a `peers` exchange sums, and what the draw gathers, go over the GPUs' own memory, with the same bits.
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
        if peers is not None and peers.wide:
            self.divide_from = DIVIDE_FROM

    @property
    def host_ranks(self) -> int:
        """1 between GPUs: NCCL's exchanges and ours can be captured."""
        return 1 if self._device.type == "cuda" else self.ranks

    def begin_sum(self, partial: Tensor, rows: int | None = None) -> Callable[[], Tensor]:
        """Begin a sum in rank order; over peer memory it is over at once, as far as the host is concerned."""
        peers = self.peers
        if peers is None or self.failure is not None or refuse(partial, peers.most):
            return super().begin_sum(partial, rows)
        self._status.enter()
        total = peers.sum_in_rank_order(partial.contiguous())
        self._status.leave()
        return lambda: total

    def sum_where_read(self, partial: Tensor, rows: int | None = None) -> tuple[Tensor, Exchange | None]:
        """Over peer memory few rows are summed by the kernel that reads them."""
        peers = self.peers
        if peers is None or self.failure is not None or refuse(partial, peers.few):
            return super().sum_where_read(partial, rows)
        self._status.enter()
        self._status.leave()
        return partial.contiguous(), peers

    def sum_own(self, partial: Tensor, each: int) -> Tensor:
        """The sums of the rows that this rank keeps; over peer memory no others travel to it."""
        peers = self.peers
        if peers is None or not peers.wide or self.failure is not None:
            return super().sum_own(partial, each)
        self._status.enter()
        total = peers.sum_of_own(partial.contiguous(), each)
        self._status.leave()
        return total

    def gather_rows(self, own: Tensor, each: int, rows: int) -> Tensor:
        """All rows, of which each rank has those it keeps."""
        peers = self.peers
        if peers is None or not peers.wide or self.failure is not None:
            return super().gather_rows(own, each, rows)
        self._status.enter()
        whole = peers.gather_own(own, each, rows)
        self._status.leave()
        return whole

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's tensor, rank 0 first; small ones over peer memory."""
        peers = self.peers
        if peers is None or self.failure is not None or not peers.takes(tensor):
            return super().gather(tensor)
        self._status.enter()
        parts = peers.gather(tensor)
        self._status.leave()
        return list(parts.unbind())

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

    def fail(self, problem: RuntimeError) -> IntarsiaError:
        """The error of an exchange that failed; names the rank that says nothing any more."""
        if self.failure is None and self.store is not None and not self._status.watched:
            problem = ask_around(self.store, self.rank, self.ranks, self._status, problem)
        return super().fail(problem)

    def check_equal(self, what: str, value: int) -> None:
        """As for all groups; before, that every rank came to all sums over peer memory."""
        self.require_all()
        super().check_equal(what, value)

    def require_all(self) -> None:
        """Look whether every rank came to all exchanges over peer memory; waits for the device."""
        super().require_all()
        if self.peers is not None and int(self.peers.failed):
            raise self.fail(RuntimeError("another rank did not come in time to a sum over peer memory"))


def ask_around(store: Store, rank: int, ranks: int, status: Status, problem: RuntimeError) -> RuntimeError:
    """A failed exchange again, with the rank to blame for it: the only one that does not answer.

    All ranks that noticed tell what they were doing, over the store that rank 0 holds.
    """
    words = plain_words(problem)[:200]
    states, silent = {}, []
    try:
        store.set(f"lost/{rank}", status.read().doing)
        for other in range(ranks):
            try:
                store.wait([f"lost/{other}"], ANSWER)
                states[other] = store.get(f"lost/{other}").decode()
            except RuntimeError:
                silent.append(other)
    except RuntimeError:  # the store is gone, and rank 0 with it
        silent = [0] if rank else []
    told = "; ".join(f"rank {other} {doing}" for other, doing in states.items())
    if len(silent) != 1:
        return LineError(words, None, told)
    return LineError(f"no answer from it after an exchange failed: {words}", silent[0], told)


def seconds(value: float) -> timedelta:
    """A timeout; infinity becomes the longest there is."""
    return timedelta(days=365) if math.isinf(value) else timedelta(seconds=value)
