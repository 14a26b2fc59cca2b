"""What benchmarks of GPU kernels share: times of graph replays, bandwidth, and a table."""

import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

PAUSE, BUDGET = 0.2, 0.2
L2_BYTES = 60 << 20  # of the largest card this is for; weights in turn cover it four times

Call = Callable[[], object]


def microseconds(calls: Sequence[Call], budget: float = BUDGET) -> float:
    """The median time of one call: all of them in one graph, replayed for `budget` seconds after a pause in
    which the card cools.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()

    def replay() -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3 / len(calls)

    time.sleep(PAUSE)
    replay()
    times: list[float] = []
    finish = time.monotonic() + budget
    while len(times) < 5 or time.monotonic() < finish:
        times.append(replay())
    return statistics.median(times)


def in_turn(one: int, most: int = 24) -> int:
    """How many weights of so many bytes cover the L2 cache four times."""
    return max(2, min(most, 1 + 4 * L2_BYTES // one))


def bandwidth() -> float:
    """Bytes a second of reading and writing 4 GiB in all."""
    source = torch.ones(1 << 29, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / (microseconds([lambda: torch.add(source, 1.0, out=target)]) * 1e-6)


def machine() -> dict[str, object]:
    """What figures depend on."""
    import triton

    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "bytes_a_second": bandwidth(),
    }


def write_json(path: Path | None, about: dict[str, object], rows: list[dict[str, object]]) -> None:
    if path:
        path.write_text(json.dumps(about | {"rows": rows}, indent=1))
