"""Times at the clock that a busy device holds: graphs replayed in turn, with no pause in which it cools."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from intarsia.checkpoint.collector import collector_paused
from intarsia.kernels.tuning.search import Call

AT_LEAST = 4e3  # microseconds of one sample
MOST_REPLAYS = 50
WARM_UP = 0.3


class HeldTimer:
    """A `Timer`: the calls are captured once in a graph; a sample replays it for a few milliseconds.

    All graphs share one pool of memory: they never run at the same time, and nobody reads what they leave.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, calls: Sequence[Call]) -> Callable[[], float]:
        """Each answer is the mean microseconds of one call."""
        self._stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with collector_paused(), torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            for call in calls:
                call()
        graph.replay()
        once = _replayed(graph, 1)
        replays = max(1, min(MOST_REPLAYS, round(AT_LEAST / max(once, 1.0))))
        return lambda: _replayed(graph, replays) / len(calls)

    def warm_up(self) -> None:
        """Large products until the clock is what it stays."""
        a = torch.randn(8192, 8192, device=self.device, dtype=torch.bfloat16)
        begin, end = _event(), _event()
        begin.record()
        while True:
            for _ in range(20):
                torch.mm(a, a)
            end.record()
            end.synchronize()
            if begin.elapsed_time(end) > WARM_UP * 1e3:
                return


@contextmanager
def quietly() -> Iterator[None]:
    """What compilers write to standard error about candidates that cannot be is not shown."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


def _replayed(graph: torch.cuda.CUDAGraph, times: int) -> float:
    """Microseconds of one replay."""
    begin, end = _event(), _event()
    begin.record()
    for _ in range(times):
        graph.replay()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) * 1e3 / times


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
