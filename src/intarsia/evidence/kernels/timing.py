"""The time of one call on a GPU, what it reads not in the L2 cache."""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from intarsia.checkpoint.collector import collector_paused
from intarsia.evidence.machine import device_state

L2_BYTES = 60 << 20  # of the largest card this is for; weights in turn cover it four times
FEWEST_REPLAYS = 5
FIRST, CAPTURE, TIMED = "first runs", "capturing", "timing"
SPENT = (FIRST, CAPTURE, TIMED)

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


@dataclass(slots=True)
class GraphClock:
    """The time of one call on the current device: all of them in one graph, replayed for `budget` seconds
    after a pause in which the device cools.

    `spent` are the seconds of its own that all figures together took, by what it did in them.
    """

    pause: float
    budget: float
    spent: dict[str, float] = field(default_factory=lambda: dict.fromkeys(SPENT, 0.0))

    def __call__(self, calls: Sequence[Call]) -> Timing:
        with self._spending(FIRST):
            stream = _run_apart(calls)
        with self._spending(CAPTURE):
            graph = _captured(calls, stream)
        return self._timed(graph.replay, len(calls))

    def eager(self, calls: Sequence[Call]) -> Timing:
        """The same of calls that cannot be captured, as they follow each other; their launches are in it."""

        def all_of_them() -> None:
            for call in calls:
                call()

        with self._spending(FIRST):
            all_of_them()
            torch.cuda.synchronize()
        return self._timed(all_of_them, len(calls))

    def _timed(self, run: Call, count: int) -> Timing:
        with self._spending(TIMED):
            time.sleep(self.pause)
            _once(run)
            times: list[float] = []
            finish = time.monotonic() + self.budget
            while len(times) < FEWEST_REPLAYS or time.monotonic() < finish:
                times.append(_once(run) / count)
        state = device_state(torch.device("cuda", torch.cuda.current_device()))
        low, high = (statistics.quantiles(times, n=20, method="inclusive")[place] for place in (0, -1))
        clock, temperature = state.get("clock_mhz"), state.get("temperature_c")
        return Timing(statistics.median(times), low, high, clock, temperature)

    @contextmanager
    def _spending(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        try:
            yield
        finally:
            self.spent[name] += time.monotonic() - begin


def in_turn(one: int, most: int = 24) -> int:
    """How many weights of so many bytes cover the L2 cache four times."""
    return max(2, min(most, 1 + 4 * L2_BYTES // one))


def _run_apart(calls: Sequence[Call]) -> torch.cuda.Stream:
    """Each call once, on a stream of their own: compiling and tuning are not captured."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    return stream


def _captured(calls: Sequence[Call], stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """The calls one after another, after each has run once on this stream."""
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
