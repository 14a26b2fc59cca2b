"""Ranks as threads of one process, joined by gloo: what they compute is what processes compute."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from intarsia.groups.torch_group import TorchGroup

PATIENCE = timedelta(seconds=20)


def on_ranks(ranks: int, work: Callable[[TorchGroup], Any]) -> list[Any]:
    """The result of `work(group)` on every rank; the first exception of a rank is raised."""
    store = dist.HashStore()
    results: list[Any] = [None] * ranks
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            options = dist.ProcessGroupGloo._Options()
            options._timeout = PATIENCE
            options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
            group = dist.ProcessGroupGloo(store, rank, ranks, options)
            results[rank] = work(TorchGroup(group, torch.device("cpu"), timeout=PATIENCE))
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
