"""The time of one call on a GPU, what it reads not in the L2 cache."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from intarsia.checkpoint.collector import collector_paused
from intarsia.evidence.machine import clocks

L2_BYTES = 60 << 20  # of the largest card this is for; weights in turn cover it four times
FEWEST_REPLAYS = 5

Call = Callable[[], object]


class Timing(float):
    """One figure in microseconds: the median of the repeats, which it is as a number, and what nine of ten
    took at least and at most; the device's state right after it, as far as it is known.
    """

    low_us: float
    high_us: float
    clock_mhz: int | None
    temperature_c: int | None

    def __new__(
        cls,
        us: float,
        low_us: float,
        high_us: float,
        clock_mhz: int | None = None,
        temperature_c: int | None = None,
    ) -> "Timing":
        made = super().__new__(cls, us)
        made.low_us, made.high_us = low_us, high_us
        made.clock_mhz, made.temperature_c = clock_mhz, temperature_c
        return made

    @property
    def us(self) -> float:
        """The median alone."""
        return float(self)


Clock = Callable[[Sequence[Call]], Timing]


def microseconds(calls: Sequence[Call], pause: float, budget: float) -> Timing:
    """The time of one call on the current device: all of them in one graph, replayed for `budget` seconds
    after a pause in which the device cools.
    """
    graph = _captured(calls)
    return _timed(graph.replay, len(calls), pause, budget)


def eager_microseconds(calls: Sequence[Call], pause: float, budget: float) -> Timing:
    """The same of calls that cannot be captured, as they follow each other; their launches are in it."""

    def all_of_them() -> None:
        for call in calls:
            call()

    all_of_them()
    torch.cuda.synchronize()
    return _timed(all_of_them, len(calls), pause, budget)


def _timed(run: Call, count: int, pause: float, budget: float) -> Timing:
    time.sleep(pause)
    _once(run)
    times: list[float] = []
    finish = time.monotonic() + budget
    while len(times) < FEWEST_REPLAYS or time.monotonic() < finish:
        times.append(_once(run) / count)
    state = clocks(torch.device("cuda", torch.cuda.current_device()))
    low, high = (statistics.quantiles(times, n=20, method="inclusive")[place] for place in (0, -1))
    return Timing(statistics.median(times), low, high, state.get("clock_mhz"), state.get("temperature_c"))


def in_turn(one: int, most: int = 24) -> int:
    """How many weights of so many bytes cover the L2 cache four times."""
    return max(2, min(most, 1 + 4 * L2_BYTES // one))


def _captured(calls: Sequence[Call]) -> torch.cuda.CUDAGraph:
    """The calls one after another, after each has run once: compiling and tuning are not captured."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    # A graph of before that is collected now could not be freed, and the capture would be lost.
    with collector_paused(), torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    return graph


def _once(run: Call) -> float:
    """Microseconds of one run."""
    begin, end = _event(), _event()
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
