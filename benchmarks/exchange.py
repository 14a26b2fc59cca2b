"""Time of one exchange of partial sums [rows, width] float32 between GPUs, eager and in a CUDA graph.

    python benchmarks/exchange.py [--ranks 2] [--width 4096]

One process a GPU, NCCL all-gather and a sum in rank order, as the network does it twice a layer. Prints a
JSON line a row count: microseconds a call, the median of 20 groups of 50 calls.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import torch

from intarsia.groups.join import Place, form, open_store

ROWS = (1, 2, 4, 8, 16, 32, 1024)
PORT = 29571


def work(rank: int, ranks: int, width: int) -> None:
    """One rank: times every row count; rank 0 prints."""
    device = torch.device("cuda", rank)
    place = Place(rank, ranks, "127.0.0.1", PORT, 60.0)
    group = form(place, open_store(place), device)
    for rows in ROWS:
        x = torch.full((rows, width), float(rank), device=device)
        for _ in range(10):
            group.sum_in_rank_order(x)
        eager = timed(lambda x=x: group.sum_in_rank_order(x), 50)
        graph = torch.cuda.CUDAGraph()
        captured = None
        try:
            with torch.cuda.graph(graph):
                for _ in range(50):
                    group.sum_in_rank_order(x)
            captured = timed(graph.replay, 1) / 50
        except RuntimeError as error:
            print(f"no graph: {error}", file=sys.stderr)
        if rank == 0:
            print(
                json.dumps(
                    {"rows": rows, "width": width, "ranks": ranks, "eager_us": eager, "graph_us": captured}
                )
            )
    torch.cuda.synchronize()


def timed(call, count: int) -> float:
    """Microseconds a call."""
    times = []
    for _ in range(20):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(count):
            call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) / count * 1e6)
    return round(statistics.median(times), 2)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--width", type=int, default=4096)
    options = parser.parse_args()
    rank = os.environ.get("EXCHANGE_RANK")
    if rank is not None:
        work(int(rank), options.ranks, options.width)
        return
    started = [
        subprocess.Popen([sys.executable, *sys.argv], env=os.environ | {"EXCHANGE_RANK": str(number)})
        for number in range(options.ranks)
    ]
    sys.exit(max(process.wait() for process in started))


if __name__ == "__main__":
    main()
