"""The time of one call on a GPU, what it reads not in the L2 cache."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch

L2_BYTES = 60 << 20  # of the largest card this is for; weights in turn cover it four times
FEWEST_REPLAYS = 5

Call = Callable[[], object]
Clock = Callable[[Sequence[Call]], float]


def microseconds(calls: Sequence[Call], pause: float, budget: float) -> float:
    """The median time of one call on the current device: all of them in one graph, replayed for `budget`
    seconds after a pause in which the device cools.
    """
    graph = _captured(calls)
    time.sleep(pause)
    _replay(graph)
    times: list[float] = []
    finish = time.monotonic() + budget
    while len(times) < FEWEST_REPLAYS or time.monotonic() < finish:
        times.append(_replay(graph) / len(calls))
    return statistics.median(times)


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
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    return graph


def _replay(graph: torch.cuda.CUDAGraph) -> float:
    """Microseconds of one replay."""
    begin, end = _event(), _event()
    begin.record()
    graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
