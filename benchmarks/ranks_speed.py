"""Speed of a network over several GPUs of one host, its weights random: decode steps and prompts.

    python benchmarks/ranks_speed.py [--ranks 2] [--layers 8] [--streams 1,8,32] [--prompt 8192]
        [--sums peers,apart,nccl,none] [--step-rows 4096,8192] [--pieces 0,512,256]

One process a GPU. Every rank draws weights of its share's sizes. Prints a JSON line each: seconds of a step
(median) with sums as they are, with kernels of their own for them, by NCCL, and without any (which computes
nonsense, and says what sums cost); seconds of a prompt with residual streams divided among ranks, whole on
each, and with sums by NCCL.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
from contextlib import contextmanager

import torch

from intarsia.evidence.speed.steps import floors
from intarsia.evidence.speed.steps.decode import time_decode
from intarsia.evidence.speed.steps.prompts import time_prompt
from intarsia.evidence.synthetic import geometry, network
from intarsia.groups.join import Place, form, open_store

CONTEXT = 2048


@contextmanager
def sums_by(group, name: str):
    """Sums of the group by what `name` says: as they are (peers, divided), by one kernel of their own
    (apart), by NCCL, on all ranks (whole, nccl), or none."""
    peers, divide_from = group.peers, group.divide_from
    if name == "nccl":
        group.peers = None
    if name in ("nccl", "whole"):
        group.divide_from = None
    if name == "apart":
        group.sum_where_read = lambda partial, rows=None: (group.sum_in_rank_order(partial, rows), None)
    if name == "none":
        group.begin_sum = lambda partial, rows=None: lambda: partial
        group.sum_where_read = lambda partial, rows=None: (partial, None)
    yield
    group.peers, group.divide_from = peers, divide_from
    for patched in ("begin_sum", "sum_where_read"):
        group.__dict__.pop(patched, None)


def work(rank: int, options: argparse.Namespace) -> None:
    """One rank; rank 0 prints."""
    device = torch.device("cuda", rank)
    place = Place(rank, options.ranks, "127.0.0.1", int(os.environ["RANKS_PORT"]), 60.0)
    store = open_store(place)
    group = form(place, store, device)
    config = geometry(options.geometry, layers=options.layers)
    model = network(config, recipe=options.recipe, device=device, group=group)
    held = torch.cuda.memory_allocated(device)
    rates = floors.bandwidth(device), floors.matrix_rate(device)

    def tell(**line: object) -> None:
        if rank == 0:
            print(json.dumps({"ranks": options.ranks, "layers": options.layers} | line), flush=True)

    tell(weights_gb=round(held / 1e9, 2), bytes_a_second=rates[0], operations_a_second=rates[1])
    for streams in map(int, options.streams.split(",")):
        for sums in options.sums.split(","):
            with sums_by(group, sums):
                done = time_decode(model, streams=streams, context=CONTEXT, bytes_a_second=rates[0])
            floor = done.bytes / rates[0]
            tell(
                decode=streams,
                sums=sums,
                ms=round(done.seconds * 1e3, 3),
                floor_ms=round(floor * 1e3, 3),
                ratio=round(floor / done.seconds, 3),
                eager=done.eager_because,
            )
    pieces = [int(rows) or None for rows in options.pieces.split(",")]
    cases = [("divided", None), ("whole", None)] + [("nccl", piece_rows) for piece_rows in pieces]
    for rows in map(int, options.step_rows.split(",")):
        for sums, group.piece_rows in cases:
            with sums_by(group, sums):
                done = time_prompt(model, options.prompt, matrix_rate=rates[1], piece=rows, broken_down=False)
            tell(
                prompt=options.prompt,
                step_rows=rows,
                sums=sums,
                pieces_of=group.piece_rows,
                seconds=round(done.seconds, 4),
                share=round(done.share, 3),
                finite=done.finite,
            )
    group.barrier("the end")
    torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--geometry", default="glm-5.3-flash")
    parser.add_argument("--recipe", default="fp4-local")
    parser.add_argument("--streams", default="1,8,32")
    parser.add_argument("--sums", default="peers,apart,nccl,none", help="of decode steps")
    parser.add_argument("--prompt", type=int, default=8192)
    parser.add_argument("--step-rows", default="4096,8192", help="rows of a prompt's step")
    parser.add_argument(
        "--pieces", default="0", help="rows of a piece whose sum runs beside products; 0 for whole"
    )
    options = parser.parse_args()
    rank = os.environ.get("RANKS_RANK")
    if rank is not None:
        work(int(rank), options)
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    environment = os.environ | {"RANKS_PORT": port}
    started = [
        subprocess.Popen([sys.executable, *sys.argv], env=environment | {"RANKS_RANK": str(number)})
        for number in range(options.ranks)
    ]
    sys.exit(max(process.wait() for process in started))


if __name__ == "__main__":
    main()
