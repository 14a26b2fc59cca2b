"""Processes that compile candidates beside each other, and meet what a candidate may do to a device.

Kernels are compiled in Python for the most part, so threads would wait for each other. What a process
compiles lies in Triton's cache on disk afterwards. A candidate that fails in a process of its own is not
tried in the one that measures.
"""

import multiprocessing
import os
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field

import torch

from intarsia.core.config import ScaleForm
from intarsia.evidence.beside import begin_beside
from intarsia.evidence.tuning.work import Workshop
from intarsia.kernels.tuning import Configuration, Site, configurations, trying
from intarsia.models.glm5_next.products import Experts, Product

OF_DEVICE = ("CUDA error", "CUDA driver error")
"""In the words of an error after which a process can use its device no more."""
NOT_ITS_FAULT = ("out of memory", "OutOfMemoryError")

Answer = tuple[int, str]
_SHOPS: list[Workshop] = []


@dataclass(slots=True)
class Compilers:
    """As many processes as `jobs`, each with one set of weights of its own at a time."""

    device: torch.device
    scales: ScaleForm
    jobs: int
    _pool: ProcessPoolExecutor | None = field(default=None, init=False)

    def __call__(self, work: Product | Experts, site: Site) -> Mapping[Configuration, str]:
        """Compile all candidates of a site; those that are refused, with the reason. What these processes
        could not find out is left to the one that measures.
        """
        found: dict[Configuration, str] = {}
        dead: set[int] = set()
        tasks = [(one, self._submit(work, site, place)) for place, one in enumerate(_candidates(site))]
        for one, task in tasks:
            try:
                process, reason = task.result()
            except BrokenProcessPool:
                self.close()
                break
            if not reason or process in dead or any(words in reason for words in NOT_ITS_FAULT):
                continue
            found[one] = reason
            if any(words in reason for words in OF_DEVICE):
                dead.add(process)
        if dead:
            self.close()
        return found

    def close(self) -> None:
        """End the processes; the next call starts new ones."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def _submit(self, work: Product | Experts, site: Site, place: int) -> "Future[Answer]":
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self.jobs,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=begin,
                initargs=(str(self.device), self.scales),
            )
        return self._pool.submit(compiled, work, site, place)


def begin(device: str, scales: ScaleForm) -> None:
    """In a process: its device and its workshop."""
    begin_beside()
    place = torch.device(device)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    _SHOPS[:] = [Workshop(place, scales, most_sets=1)]


def compiled(work: Product | Experts, site: Site, place: int) -> Answer:
    """In a process: run a candidate once with the fewest and the most rows; the process, and what failed."""
    shop = _SHOPS[0]
    try:
        trial = shop.trial(work, site)
        with trying(site, _candidates(site)[place]):
            for call in (trial.calls[0], trial.calls[-1]):
                call()
        if shop.device.type == "cuda":
            torch.cuda.synchronize(shop.device)
    except Exception as error:
        return os.getpid(), f"{type(error).__name__}: {error}".partition("\n")[0][:200]
    return os.getpid(), ""


def _candidates(site: Site) -> tuple[Configuration, ...]:
    return tuple(configurations(site.operation).candidates(site))
