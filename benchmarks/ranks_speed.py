"""Speed of a network over several GPUs of one host, its weights random: decode steps and prompts.

    python benchmarks/ranks_speed.py [--ranks 2] [--layers 8] [--streams 1,8,32] [--prompt 8192]
        [--step-rows 1024,4096] [--pieces 0,512,256]

One process a GPU. Every rank draws weights of its share's sizes. Prints a JSON line each: seconds of a step
(median) with sums over peer memory and with NCCL's, and of a prompt with sums whole and in pieces of rows.
"""

import argparse
import json
import os
import socket
import subprocess
import sys

import torch

from intarsia.evidence.speed.steps import floors
from intarsia.evidence.speed.steps.decode import time_decode
from intarsia.evidence.speed.steps.prompts import time_prompt
from intarsia.evidence.synthetic import geometry, network
from intarsia.groups.join import Place, form, open_store

CONTEXT = 2048


def work(rank: int, options: argparse.Namespace) -> None:
    """One rank; rank 0 prints."""
    device = torch.device("cuda", rank)
    place = Place(rank, options.ranks, "127.0.0.1", int(os.environ["RANKS_PORT"]), 60.0)
    group = form(place, open_store(place), device)
    config = geometry(options.geometry, layers=options.layers)
    model = network(config, recipe=options.recipe, device=device, group=group)
    held = torch.cuda.memory_allocated(device)
    rates = floors.bandwidth(device), floors.matrix_rate(device)

    def tell(**line: object) -> None:
        if rank == 0:
            print(json.dumps({"ranks": options.ranks, "layers": options.layers} | line), flush=True)

    tell(weights_gb=round(held / 1e9, 2), bytes_a_second=rates[0], operations_a_second=rates[1])
    peers = group.peers
    for streams in map(int, options.streams.split(",")):
        for sums, exchange in (("peers", peers), ("nccl", None)):
            group.peers = exchange
            done = time_decode(
                model, streams=streams, context=CONTEXT, bytes_a_second=rates[0], empty_kernel=0.0,
                broken_down=False,
            )  # fmt: skip
            tell(
                decode=streams,
                sums=sums,
                ms=round(done.seconds * 1e3, 3),
                device_ms=round(done.device_seconds * 1e3, 3),
                floor_ms=round(done.floor_seconds * 1e3, 3),
                ratio=round(done.ratio, 3),
                eager=done.eager_because,
            )
    group.peers = peers
    for rows in map(int, options.step_rows.split(",")):
        for piece_rows in (int(rows_of) or None for rows_of in options.pieces.split(",")):
            group.piece_rows = piece_rows
            done = time_prompt(model, options.prompt, matrix_rate=rates[1], piece=rows, broken_down=False)
            tell(
                prompt=options.prompt,
                step_rows=rows,
                pieces_of=piece_rows,
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
    parser.add_argument("--prompt", type=int, default=8192)
    parser.add_argument("--step-rows", default="1024,4096", help="rows of a prompt's step")
    parser.add_argument("--pieces", default="0", help="rows of a piece whose sum runs beside products; 0 for whole")
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
