"""Compiling beside each other, in processes, what a run is going to time.

Kernels are compiled in Python for the most part, so threads would wait for each other. Every process goes
through an operation's measure and runs its share of the calls once, without timing them; what it compiles
lies in the compilers' caches on disk afterwards, where the process that measures finds it. All processes are
gone before the first figure: nothing else runs on the device then.
"""

import importlib
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from intarsia.core.progress import SILENT, Progress
from intarsia.evidence.beside import begin_beside
from intarsia.evidence.kernels.bench import Bench
from intarsia.evidence.kernels.operations import MEASURES, config_of_geometry
from intarsia.evidence.kernels.settings import KernelsSettings, Operation
from intarsia.evidence.kernels.table import Rates, Table
from intarsia.evidence.kernels.timing import Call, Timing
from intarsia.kernels.tuning.use import use

SHARES: Mapping[Operation, int] = {
    "kda": 8,
    "encode": 2,
    "attention": 8,
    "linear": 16,
    "experts": 6,
    "head": 3,
    "hyper": 2,
    "small": 2,
    "storing": 1,
}
"""Into how many parts an operation's figures are cut; what takes longest is begun first. Each process that
has a part of `kda` imports fla-core, which takes as long as compiling some of it."""
TIME_UP = "time was up"
NO_TIME = Timing(1.0, 1.0, 1.0)
NO_RATES = Rates(1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Share:
    """Every `of`-th figure of an operation, from `index` on."""

    operation: Operation
    index: int
    of: int

    def __str__(self) -> str:
        return f"part {self.index + 1} of {self.of} of {self.operation}"


Work = Callable[[KernelsSettings, str, Share], str]


@dataclass(frozen=True, slots=True)
class Compiled:
    """What was compiled before the first figure. `left`: parts that were not, to their end, with the reason;
    the run compiles those itself.
    """

    seconds: float = 0.0
    processes: int = 0
    parts: int = 0
    left: Mapping[str, str] = field(default_factory=dict)


def shares(only: Sequence[Operation], jobs: int) -> list[Share]:
    """All parts of a run, no more of an operation than there are processes."""
    cut = {name: min(most, jobs) for name, most in SHARES.items() if name in only}
    return [Share(name, index, of) for name, of in cut.items() for index in range(of)]


def compile_ahead(
    settings: KernelsSettings,
    device: torch.device,
    *,
    finish: float | None = None,
    progress: Progress = SILENT,
    work: Work | None = None,
) -> Compiled:
    """Compile all parts in processes, until `finish` on the monotonic clock. However this ends, no process
    is left.
    """
    begin, jobs = time.monotonic(), min(settings.jobs, len(os.sched_getaffinity(0)))
    parts = shares(settings.only, jobs)
    if jobs < 2 or not parts:
        return Compiled()
    before = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(parts)), mp_context=context, initializer=begin_beside)
    try:
        tasks = {pool.submit(work or compiled, settings, str(device), part): part for part in parts}
        left = _gathered(tasks, finish, progress)
    finally:
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        pool.shutdown(wait=True, cancel_futures=True)
    return Compiled(time.monotonic() - begin, min(jobs, len(parts)), len(parts), left)


@contextmanager
def importing(modules: Sequence[str]) -> Iterator[None]:
    """Import modules, as far as they are installed, beside what is done within it."""

    def run() -> None:
        for name in modules:
            with suppress(Exception):
                importlib.import_module(name)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    thread.join()


def _gathered(
    tasks: Mapping["Future[str]", Share], finish: float | None, progress: Progress
) -> dict[str, str]:
    """Reasons of the parts that were not compiled to their end."""
    left = {str(part): TIME_UP for part in tasks.values()}
    timeout = None if finish is None else max(0.0, finish - time.monotonic())
    try:
        with progress.phase("compiling", len(tasks), "parts") as phase:
            for task in as_completed(tasks, timeout):
                error = task.exception()
                left[str(tasks[task])] = task.result() if error is None else _said(error)
                phase.advance(1)
    except TimeoutError:
        pass
    return {part: reason for part, reason in left.items() if reason}


def _said(error: BaseException) -> str:
    if isinstance(error, BrokenProcessPool):
        return "a process died"
    return f"{type(error).__name__}: {error}".partition("\n")[0][:200]


def compiled(settings: KernelsSettings, device: str, share: Share) -> str:
    """In a process: run a part; what failed, or nothing."""
    place = torch.device(device)
    try:
        torch.cuda.set_device(place)
        torch.cuda.empty_cache()
        use(settings.tuning, place)
        with autotuners_share(share):
            MEASURES[share.operation](AheadBench.of(settings, place, share))
    except Exception as error:
        return _said(error)
    return ""


@dataclass(slots=True)
class ShareClock:
    """Runs the first and the last call of every figure of its share, and times nothing."""

    share: Share
    figures: int = 0

    def __call__(self, calls: Sequence[Call]) -> Timing:
        mine = self.figures % self.share.of == self.share.index
        self.figures += 1
        for call in {id(call): call for call in (calls[0], calls[-1])}.values() if mine else ():
            call()
        return NO_TIME


class AheadBench(Bench):
    """A run of which nothing but its compiling counts: one set of weights, and no result looked at."""

    __slots__ = ()

    @classmethod
    def of(cls, settings: KernelsSettings, device: torch.device, share: Share) -> "AheadBench":
        """One that goes through the figures of a run and does its share."""
        config, clock = config_of_geometry(), ShareClock(share)
        return cls(config, device, clock, Table(NO_RATES), settings.rows, settings.peers, settings.variants)

    def turns(self, one: int) -> int:
        """One weight alone."""
        return 1

    def finite(self, case: str, calls: Sequence[Callable[[], Tensor]]) -> Timing:
        """As of any other calls."""
        return self.clock(calls)

    def peer(
        self, name: str, ready: Callable[[], Sequence[Call]], *, compiles: bool = True
    ) -> dict[str, float]:
        """Run a peer once in every share: its autotuners share what they try. The run says what it lacks."""
        if self.peers and compiles:
            with suppress(Exception):
                ready()[0]()
        return {}


@contextmanager
def autotuners_share(share: Share) -> Iterator[None]:
    """Let Triton's autotuners, which peers use, compile their share of what they try, each once; whom they
    choose is not kept: the run does that on a device where nothing else runs.
    """
    try:
        from triton.runtime.autotuner import Autotuner
    except ImportError:
        yield
        return
    names = ("prune_configs", "do_bench", "check_disk_cache")
    own = {name: vars(Autotuner)[name] for name in names}

    def some(tuner: Any, given: dict[str, Any]) -> list[Any]:
        found = own["prune_configs"](tuner, given)
        return list(found[share.index :: share.of] or found[:1])

    def once(_: Any) -> Callable[..., list[float]]:
        def run(call: Call, quantiles: Sequence[float]) -> list[float]:
            call()
            return [1.0] * len(quantiles)

        return run

    def unkept(_: Any, key: object, configs: object, tries: Callable[[], None]) -> bool:
        tries()
        return False

    replaced = dict(zip(names, (some, property(once), unkept), strict=True))
    try:
        for name, new in replaced.items():
            setattr(Autotuner, name, new)
        yield
    finally:
        for name, old in own.items():
            setattr(Autotuner, name, old)
