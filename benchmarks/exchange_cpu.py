"""Time of one exchange of partial sums [rows, width] float32 between processes of one CPU.

    python benchmarks/exchange_cpu.py [--ranks 2,3]

Gather and sum in rank order over gloo, and over lines between neighbours, both on loopback, one thread a
rank. Prints a JSON line each: microseconds a call, the median of five groups of calls.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time

import torch

from intarsia.groups.join import Place, form, open_store
from intarsia.groups.ring.meet import Neighbours

HOST = "127.0.0.1"
SHAPES = ((16, 128, 200), (16, 4096, 100), (1024, 4096, 5))
"""Rows, width, calls of a group."""


def work(rank: int, ports: list[int], ring: bool) -> None:
    """One rank; rank 0 prints."""
    torch.set_num_threads(1)
    ranks = len(ports)
    around = Neighbours((HOST, ports[rank - 1]), (HOST, ports[(rank + 1) % ranks]))
    place = Place(rank, ranks, HOST, ports[rank if ring else 0], 60.0, around if ring else None)
    group = form(place, open_store(place), torch.device("cpu"))
    for rows, width, calls in SHAPES:
        x = torch.randn(rows, width)
        times = []
        for turn in range(6):
            group.barrier(f"turn {turn}")
            begin = time.perf_counter()
            for _ in range(calls):
                group.sum_in_rank_order(x)
            times.append((time.perf_counter() - begin) / calls * 1e6)
        line = {"ranks": ranks, "over": "ring" if ring else "gloo", "rows": rows, "width": width}
        if rank == 0:
            print(json.dumps(line | {"us": round(statistics.median(times[1:]), 1)}), flush=True)
    group.barrier("the end")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", default="2,3")
    options = parser.parse_args()
    if "EXCHANGE_RANK" in os.environ:
        ports = json.loads(os.environ["EXCHANGE_PORTS"])
        work(int(os.environ["EXCHANGE_RANK"]), ports, "EXCHANGE_RING" in os.environ)
        return
    for ranks in map(int, options.ranks.split(",")):
        for ring in (False, True):
            listeners = [socket.create_server((HOST, 0)) for _ in range(ranks)]
            ports = [listener.getsockname()[1] for listener in listeners]
            for listener in listeners:
                listener.close()
            environment = os.environ | {"EXCHANGE_PORTS": json.dumps(ports), "OMP_NUM_THREADS": "1"}
            if ring:
                environment["EXCHANGE_RING"] = "1"
            started = [
                subprocess.Popen([sys.executable, *sys.argv], env=environment | {"EXCHANGE_RANK": str(rank)})
                for rank in range(ranks)
            ]
            if max(process.wait() for process in started):
                sys.exit(1)


if __name__ == "__main__":
    main()
