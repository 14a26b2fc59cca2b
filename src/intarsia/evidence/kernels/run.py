"""A run of `bench kernels`: the device's rates, the operations one after another, the results."""

import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from intarsia.core.errors import UsageError
from intarsia.evidence.errors import TimeUpError
from intarsia.evidence.kernels import attention, encode, experts, head, hyper, kda, linear, small, storing
from intarsia.evidence.kernels.aims import reached
from intarsia.evidence.kernels.bench import Bench
from intarsia.evidence.kernels.settings import KernelsSettings, Operation
from intarsia.evidence.kernels.table import Rates, Row, Table
from intarsia.evidence.kernels.timing import Call, Clock, Timing, eager_microseconds, microseconds
from intarsia.evidence.machine import clocks, cuda_device, machine
from intarsia.evidence.settings import kept
from intarsia.evidence.speed.steps import floors
from intarsia.evidence.synthetic import geometry
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.kernels import choice
from intarsia.kernels.tuning.use import use

GEOMETRY = "glm-5.3-flash"
MEASURES: Mapping[Operation, Callable[[Bench], None]] = {
    "linear": linear.measure,
    "experts": experts.measure,
    "kda": kda.measure,
    "attention": attention.measure,
    "hyper": hyper.measure,
    "head": head.measure,
    "small": small.measure,
    "encode": encode.measure,
    "storing": storing.measure,
}
NOTES = (
    "weights and rows are random; experts are chosen uniformly",
    "every figure is of one operation alone: what a step loses between them is not in it",
    "exchanges between ranks are not among the operations",
)


@dataclass(frozen=True)
class KernelsRun:
    """All rows of one run. `skipped`: variants and peers that were not timed, and why; `failed`: operations
    that ended with an error, and which. Their rows until then are kept.
    """

    settings: KernelsSettings
    machine: Mapping[str, Any]
    rates: Rates
    clocks_before: Mapping[str, Any]
    clocks_after: Mapping[str, Any]
    rows: tuple[Row, ...]
    skipped: Mapping[str, str]
    failed: Mapping[str, str]

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
            "not_run": list(self.not_run),
        }


def limited(clock: Clock, limit: float | None) -> Clock:
    """A clock that raises TimeUpError once so many seconds have passed since now."""
    if limit is None:
        return clock
    finish = time.monotonic() + limit

    def timed(calls: Sequence[Call]) -> Timing:
        if time.monotonic() >= finish:
            raise TimeUpError("limit", found=f"{limit:g} seconds, which have passed")
        return clock(calls)

    return timed


def measure_kernels(settings: KernelsSettings, told: Callable[[Row], None]) -> KernelsRun:
    """Time the operations that were asked for; `told` gets each row at once. Raises UsageError without a GPU
    that runs Triton kernels.
    """
    device = cuda_device(settings.device, action="kernels are only timed on a GPU")
    reason = choice.no_triton(device)
    if reason:
        raise UsageError("device", found=reason, expected="a GPU that runs Triton kernels")
    with torch.cuda.device(device):
        use(settings.tuning, device)
        before = clocks(device)
        pause, budget = settings.pause, settings.budget
        bench = Bench(
            Glm5NextConfig.from_checkpoint_config(geometry(GEOMETRY)),
            device,
            limited(partial(microseconds, pause=pause, budget=budget), settings.limit),
            Table(_rates(device, settings.pause), told),
            settings.rows,
            settings.peers,
            settings.variants,
            limited(
                partial(eager_microseconds, pause=settings.pause, budget=settings.budget), settings.limit
            ),
        )
        failed = run_parts(bench, settings.only)
        return KernelsRun(
            settings,
            {**machine(device), "peers": _versions()},
            bench.table.rates,
            before,
            clocks(device),
            tuple(bench.table.rows),
            bench.skipped,
            failed,
        )


def run_parts(bench: Bench, only: tuple[Operation, ...]) -> dict[str, str]:
    """Run operations one after another; what ended with an error, and its message.

    An error in one does not lose what the others take minutes to measure.
    """
    failed: dict[str, str] = {}
    for name in only:
        try:
            MEASURES[name](bench)
        except TimeUpError as error:
            bench.skipped[f"the rest of {name}"] = error.found
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
        if bench.device.type == "cuda":
            torch.cuda.empty_cache()
    return failed


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
