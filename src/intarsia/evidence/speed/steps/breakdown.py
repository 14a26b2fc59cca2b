"""Where the device time of a step goes, operation by operation.

While the network's operations are marked, each begins and ends with a tiny kernel that waits for nothing. In
the device's own record of kernels those separate one operation from the next, whoever launched what is
between them, eagerly or in a captured graph.
"""

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

import torch

from intarsia.formats import Stored
from intarsia.kernels import aside
from intarsia.models.glm5_next import attention, feed_forward, model

OPERATIONS = "intarsia.kernels"
BETWEEN = "between operations"
_NO_OPERATIONS = (aside.__name__,)
_MARK = "spin_kernel"


@dataclass(slots=True)
class Share:
    """All calls of an operation in one step: how often, how many kernels, seconds of the device."""

    operation: str
    calls: int = 0
    kernels: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Timeline:
    """The kernels of one step, names and seconds in their order. `span`: from the first's begin to the last's
    end; `busy`: seconds in which at least one ran. Being recorded makes a step longer.
    """

    kernels: tuple[tuple[str, float], ...]
    span: float
    busy: float


@dataclass(slots=True)
class Marks:
    """Which operation every stretch between two marks belongs to, in the order of launching."""

    log: list[str] = field(default_factory=list)
    _inside: int = 0

    def marked(self, name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        """The operation between two marks; what it calls itself is not told apart."""

        @functools.wraps(operation)
        def between(*args: Any, **options: Any) -> Any:
            if self._inside:
                return operation(*args, **options)
            self._mark(" ".join([name, *_weights([*args, *options.values()])]))
            self._inside += 1
            try:
                return operation(*args, **options)
            finally:
                self._inside -= 1
                self._mark(BETWEEN)

        return between

    def _mark(self, name: str) -> None:
        torch.cuda._sleep(1)  # type: ignore[no-untyped-call]
        self.log.append(name)


@contextmanager
def marked_operations() -> Iterator[Marks]:
    """Inside the block the network's operations are marked, and none runs beside another."""
    marks, found = Marks(), list(_operations())
    for module, name, operation in found:
        setattr(module, name, marks.marked(name, operation))
    try:
        with aside.in_order():
            yield marks
    finally:
        for module, name, operation in found:
            setattr(module, name, operation)


@contextmanager
def watched_routing() -> Iterator[list[int]]:
    """Inside the block the numbers of different experts that rows are sent to are noted, layer by layer."""
    met: list[int] = []
    module: Any = feed_forward
    route = module.route

    def noting(*args: Any, **options: Any) -> Any:
        routing = route(*args, **options)
        met.append(len(set(routing.experts.flatten().tolist()) - {-1}))
        return routing

    module.route = noting
    try:
        yield met
    finally:
        module.route = route


def timeline(run: Callable[[], object]) -> Timeline:
    """The device's record of one run."""
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as record:
        run()
        torch.cuda.synchronize()

    events = sorted(
        (event for event in record.events() if event.device_type.name == "CUDA"),
        key=lambda event: float(event.time_range.start),
    )
    if not events:
        return Timeline((), 0.0, 0.0)
    kernels = tuple((event.name, event.time_range.elapsed_us() / 1e6) for event in events)
    times = [(float(event.time_range.start), float(event.time_range.end)) for event in events]
    span = max(end for _, end in times) - times[0][0]
    return Timeline(kernels, span / 1e6, covered(times) / 1e6)


def covered(times: Iterable[tuple[float, float]]) -> float:
    """How much time intervals cover, sorted by their begins; a kernel may begin while the one before runs."""
    total, reached = 0.0, float("-inf")
    for begin, end in times:
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def shares(record: Timeline, log: Iterable[str]) -> list[Share]:
    """Operations by the device time they took, most first. `log` is that of one run."""
    found: dict[str, Share] = {}
    names = iter(log)
    current = found.setdefault(BETWEEN, Share(BETWEEN))
    for name, seconds in record.kernels:
        if _MARK in name:
            operation = next(names)
            current = found.setdefault(operation, Share(operation))
            current.calls += 1
            continue
        current.kernels += 1
        current.seconds += seconds
    return sorted(found.values(), key=lambda share: -share.seconds)


def _operations() -> Iterator[tuple[ModuleType, str, Callable[..., Any]]]:
    """Where the network's modules hold operations: by their own names, and by those of packages."""
    modules = [attention, feed_forward, model]
    for module in tuple(modules):
        modules += [value for value in vars(module).values() if _is_package(value) and value not in modules]
    for module in modules:
        for name, value in vars(module).items():
            if isinstance(value, FunctionType) and _is_operation(value):
                yield module, name, value


def _is_operation(value: FunctionType) -> bool:
    """What answers yes or no launches nothing."""
    if value.__annotations__.get("return") is bool:
        return False
    return value.__module__.startswith(OPERATIONS) and value.__module__ not in _NO_OPERATIONS


def _is_package(value: object) -> bool:
    return isinstance(value, ModuleType) and value.__name__.startswith(OPERATIONS)


def _weights(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, Stored):
            yield f"{value.format}{list(value.shape)}"
        elif isinstance(value, tuple | list):
            yield from _weights(value)
