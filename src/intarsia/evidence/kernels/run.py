"""A run of `bench kernels`: the device's rates, the operations one after another, the results."""

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from intarsia.core.errors import UsageError
from intarsia.core.progress import SILENT, Progress
from intarsia.evidence.errors import TimeUpError
from intarsia.evidence.kernels.ahead import Compiled, compile_ahead, importing
from intarsia.evidence.kernels.aims import reached
from intarsia.evidence.kernels.bench import Bench
from intarsia.evidence.kernels.operations import GEOMETRY, MEASURES, PEER_MODULES, config_of_geometry
from intarsia.evidence.kernels.settings import KernelsSettings, Operation
from intarsia.evidence.kernels.table import Rates, Row, Table
from intarsia.evidence.kernels.timing import Call, Clock, GraphClock, Timing
from intarsia.evidence.machine import clocks, cuda_device, machine
from intarsia.evidence.settings import kept
from intarsia.evidence.speed.steps import floors
from intarsia.kernels import choice
from intarsia.kernels.tuning.use import use

NOTES = (
    "weights and rows are random; experts are chosen uniformly",
    "every figure is of one operation alone: what a step loses between them is not in it",
    "exchanges between ranks are not among the operations",
)


TIME_UP, INTERRUPTED = "the limit, which has passed", "the run was interrupted"


@dataclass(frozen=True, slots=True)
class Ended:
    """How the operations ended: those that failed, with the error, and whether somebody ended the run."""

    failed: Mapping[str, str]
    interrupted: bool = False


@dataclass(frozen=True)
class KernelsRun:
    """All rows of one run. `skipped`: variants and peers that were not timed, and why; `failed`: operations
    that ended with an error, and which. Their rows until then are kept. `seconds`: where the run's time went.
    """

    settings: KernelsSettings
    machine: Mapping[str, Any]
    rates: Rates
    clocks_before: Mapping[str, Any]
    clocks_after: Mapping[str, Any]
    rows: tuple[Row, ...]
    skipped: Mapping[str, str]
    failed: Mapping[str, str]
    interrupted: bool = False
    ahead: Compiled = field(default_factory=Compiled)
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def not_run(self) -> tuple[str, ...]:
        """In sentences."""
        skipped = (f"{name} was not timed: {reason}" for name, reason in self.skipped.items())
        failed = (f"{name} was not timed to its end: {reason}" for name, reason in self.failed.items())
        left = (name for name in MEASURES if name not in self.settings.only)
        return (*NOTES, *skipped, *failed, *(f"{name} was not timed: not asked for" for name in left))

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "geometry": GEOMETRY,
            "settings": kept(self.settings, KernelsSettings),
            "machine": dict(self.machine),
            "rates": asdict(self.rates),
            "clocks_before": dict(self.clocks_before),
            "clocks_after": dict(self.clocks_after),
            "rows": [row.as_dict() for row in self.rows],
            "aims": [line.as_dict() for line in reached(self.rows)],
            "failed": dict(self.failed),
            "interrupted": self.interrupted,
            "compiled": asdict(self.ahead),
            "seconds": dict(self.seconds),
            "not_run": list(self.not_run),
        }


def limited(clock: Clock, finish: float | None) -> Clock:
    """A clock that raises TimeUpError from a moment on the monotonic clock on."""
    if finish is None:
        return clock

    def timed(calls: Sequence[Call]) -> Timing:
        if time.monotonic() >= finish:
            raise TimeUpError("limit", found=TIME_UP)
        return clock(calls)

    return timed


def measure_kernels(
    settings: KernelsSettings, told: Callable[[Row], None], *, progress: Progress = SILENT
) -> KernelsRun:
    """Compile and time the operations that were asked for; `told` gets each row at once. An interrupt ends
    the timing, and what was timed is returned. Raises UsageError without a GPU that runs Triton kernels.
    """
    begin = time.monotonic()
    device = cuda_device(settings.device, action="kernels are only timed on a GPU")
    reason = choice.no_triton(device)
    if reason:
        raise UsageError("device", found=reason, expected="a GPU that runs Triton kernels")
    finish = None if settings.limit is None else begin + settings.limit
    with torch.cuda.device(device):
        use(settings.tuning, device)
        half = None if settings.limit is None else begin + settings.limit / 2
        with importing(PEER_MODULES if settings.peers else ()):
            ahead = compile_ahead(settings, device, finish=half, progress=progress)
        before = clocks(device)
        clock = GraphClock(settings.pause, settings.budget)
        bench = Bench(
            config_of_geometry(),
            device,
            limited(clock, finish),
            Table(_rates(device, settings.pause), told),
            settings.rows,
            settings.peers,
            settings.variants,
            limited(clock.eager, finish),
        )
        ended = run_parts(bench, settings.only)
        seconds = {"compiling ahead": ahead.seconds, **clock.spent}
        seconds["preparing"] = time.monotonic() - begin - sum(seconds.values())
        return KernelsRun(
            settings,
            {**machine(device), "peers": _versions()},
            bench.table.rates,
            before,
            clocks(device),
            tuple(bench.table.rows),
            bench.skipped,
            ended.failed,
            ended.interrupted,
            ahead,
            {name: round(took, 3) for name, took in seconds.items()},
        )


def run_parts(bench: Bench, only: Sequence[Operation]) -> Ended:
    """Run operations one after another until an interrupt.

    An error in one does not lose what the others take minutes to measure.
    """
    failed: dict[str, str] = {}
    for place, name in enumerate(only):
        try:
            MEASURES[name](bench)
        except TimeUpError as error:
            bench.skipped[f"the rest of {name}"] = error.found
        except KeyboardInterrupt:
            bench.skipped[f"the rest of {name}"] = INTERRUPTED
            bench.skipped |= dict.fromkeys(only[place + 1 :], INTERRUPTED)
            return Ended(failed, interrupted=True)
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()
    return Ended(failed)


def _rates(device: torch.device, pause: float) -> Rates:
    """As fast as figures are that begin after a pause."""
    streamed = floors.bandwidth(device)
    time.sleep(pause)
    return Rates(streamed, floors.matrix_rate(device, floors.REPEATS))


def _versions() -> dict[str, str]:
    """Of what is timed or compiles, where it is installed."""
    found = {}
    for name in ("triton", "fla", "torchao"):
        try:
            found[name] = str(importlib.import_module(name).__version__)
        except (ImportError, AttributeError):
            continue
    return found
