"""Ranks as threads of one process, joined by gloo: what they compute is what processes compute."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from intarsia.groups.torch_group import TorchGroup

PATIENCE = timedelta(seconds=20)
MEETINGS = 3  # gloo's mesh of one process now and then closes a connection that it has just accepted


def on_ranks(ranks: int, work: Callable[[TorchGroup], Any]) -> list[Any]:
    """The result of `work(group)` on every rank; the first exception of a rank is raised."""
    store = dist.HashStore()
    results: list[Any] = [None] * ranks
    errors: list[BaseException] = []
    here = threading.Barrier(ranks)
    met: list[bool] = [False] * ranks

    def meet(rank: int) -> dist.ProcessGroup:
        for meeting in range(MEETINGS):
            failure = None
            try:
                group = _meet(dist.PrefixStore(str(meeting), store), rank, ranks)
            except RuntimeError as error:
                failure = error
            met[rank] = failure is None
            here.wait()
            if all(met):
                return group
            here.wait()  # nobody writes down the next meeting before all have read this one
        raise failure or RuntimeError("another rank did not come")

    def run(rank: int) -> None:
        try:
            results[rank] = work(TorchGroup(meet(rank), torch.device("cpu"), timeout=PATIENCE))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
    return results


def _meet(store: dist.Store, rank: int, ranks: int) -> dist.ProcessGroup:
    options = dist.ProcessGroupGloo._Options()
    options._timeout = PATIENCE
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    return dist.ProcessGroupGloo(store, rank, ranks, options)
