"""Time of one exchange of partial sums [rows, width] float32 between GPUs, eager and in a CUDA graph.

    python benchmarks/exchange.py [--ranks 2] [--width 4096] [--tiles 256] [--rows 1,8,32] [--overlap]

One process a GPU; gather and sum in rank order, as the network does it twice a layer: by NCCL, over peer
memory by the small exchange with programs of so many numbers, and by the wide one. Prints a JSON line a row
count: microseconds a call, the median of 20 groups of 50 calls; `equal` says that both give the same bits.
`own` and `rows` are the wide exchange's sums of the rows that a rank keeps, and the gathering of normed rows.
Up to 64 rows also a site of the hyper-connections and a conversion of its output: alone, after an exchange
(`apart`), and summing for itself.
With `--overlap` also a product of
[rows, width] with [width, width] bfloat16 and its exchange, whole and in four pieces of rows whose exchanges
run beside the next piece's product.
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

from intarsia.groups.group import add_in_order
from intarsia.groups.join import Place, form, open_store
from intarsia.groups.peer.meet import open_exchange
from intarsia.kernels import hyper_connection as hyper
from intarsia.kernels.exchange import MOST, TILE

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 1024, 4096)
CALLS = 50
PROMPT_ROWS = (512, 1024, 2048, 4096)
PIECES = 4
RESIDENT = 2048
"""Programs that a GPU holds at once: more would wait for each other."""


def work(rank: int, options: argparse.Namespace) -> None:
    """One rank: times every row count; rank 0 prints."""
    device = torch.device("cuda", rank)
    place = Place(rank, options.ranks, "127.0.0.1", int(os.environ["EXCHANGE_PORT"]), 60.0)
    store = open_store(place)
    group = form(place, store, device)
    if rank == 0 and group.peers is None:
        print("no exchange over peer memory", file=sys.stderr)
    peers, group.peers = group.peers, None
    ours = {}
    for tile in map(int, options.tiles.split(",")):
        # each has counters and buffers of its own
        most = min(RESIDENT * tile, max(ROWS) * options.width)
        ours[f"small{tile}"] = opened(f"tile{tile}", store, group, most=most, tile=tile)
    ours["wide"] = opened("wide", store, group, most=TILE, wide=True)
    generator = torch.Generator(device).manual_seed(rank)
    for rows in map(int, options.rows.split(",")):
        x = torch.randn((rows, options.width), generator=generator, device=device)
        line = {"rows": rows, "width": options.width, "ranks": options.ranks}
        line |= figures("nccl", group.sum_in_rank_order, x)
        expected = add_in_order(group.gather(x))
        for name, exchange in ours.items():
            if exchange is not None and x.numel() <= exchange.most:
                equal = torch.equal(exchange.sum_in_rank_order(x), expected)
                line |= figures(name, exchange.sum_in_rank_order, x) | {f"{name}_equal": equal}
        if ours["wide"] is not None and rows > MOST // options.width:
            line |= divided(ours["wide"], x)
        elif peers is not None:
            line |= sites(peers, x)
        if rank == 0:
            print(json.dumps(line), flush=True)
    if options.overlap:
        for rows in PROMPT_ROWS:
            overlap(group, rows, options.width, device)
    group.barrier("the end")
    torch.cuda.synchronize()


def opened(name: str, store, group, **sizes):
    """An exchange beside the group's own, on all ranks."""
    prefixed = torch.distributed.PrefixStore(name, store)
    return open_exchange(prefixed, group.rank, group.ranks, group._device, timeout=30.0, **sizes)


def divided(exchange, x) -> dict[str, float | None]:
    """Microseconds in a graph where every rank keeps the residual streams of its own rows."""
    rows = len(x)
    each = -(-rows // exchange.ranks)
    own = x[exchange.rank * each : (exchange.rank + 1) * each].bfloat16()
    return {
        "own_us": graph_us(lambda: exchange.sum_of_own(x, each)),
        "rows_us": graph_us(lambda: exchange.gather_own(own, each, rows)),
    }


def sites(exchange, partial) -> dict[str, float | None]:
    """Microseconds of a site in a graph by what sums its input, and whether the bits are the same."""
    rows, width = partial.shape
    generator = torch.Generator(partial.device).manual_seed(7)

    def numbers(*shape):
        return torch.randn(shape, generator=generator, device=partial.device)

    fn = (numbers(24, 4 * width) / (4 * width) ** 0.5).bfloat16()
    weights = hyper.Site(fn, numbers(24), numbers(3), numbers(width))
    rule = hyper.Rule(norm_eps=1e-5, eps=1e-6, iterations=20)
    streams = numbers(rows, 4, width).bfloat16()
    mix = hyper.HyperMix(numbers(rows, 4), numbers(rows, 4), torch.softmax(numbers(rows, 4, 4), -1))

    def site(y, sums=None):
        after, x, own = hyper.site(streams, hyper.Pending(y, mix, sums), weights, rule)
        return after, x.float(), own

    apart, joined = site(exchange.sum_in_rank_order(partial)), site(partial, exchange)
    return {
        "site_us": graph_us(lambda: site(partial)),
        "site_apart_us": graph_us(lambda: site(exchange.sum_in_rank_order(partial))),
        "site_summing_us": graph_us(lambda: site(partial, exchange)),
        "site_equal": torch.equal(apart[0], joined[0]) and torch.equal(apart[1], joined[1]),
    }


def overlap(group, rows: int, width: int, device: torch.device) -> None:
    """A product and its exchange, whole against in pieces."""
    x = torch.randn(rows, width, device=device).bfloat16()
    w = torch.randn(width, width, device=device).bfloat16()

    def product():
        return (x @ w).float()

    def whole():
        return group.sum_in_rank_order(product())

    def pieces():
        waiting = [group.begin_sum((part @ w).float()) for part in x.chunk(PIECES)]
        return torch.cat([wait() for wait in waiting])

    line = {"rows": rows, "product_us": timed(product, CALLS)}
    line |= {"whole_us": timed(whole, CALLS), "pieces_us": timed(pieces, CALLS)}
    line["equal"] = torch.equal(whole(), pieces())
    if group.rank == 0:
        print(json.dumps(line), flush=True)


def figures(name: str, call, x) -> dict[str, float | None]:
    """Microseconds of `call(x)` from Python and in a graph."""
    for _ in range(10):
        call(x)
    eager = timed(lambda: call(x), CALLS)
    return {f"{name}_us": eager, f"{name}_graph_us": graph_us(lambda: call(x))}


def graph_us(call) -> float | None:
    """Microseconds of `call` in a graph."""
    graph = torch.cuda.CUDAGraph()
    call()
    try:
        with torch.cuda.graph(graph):
            for _ in range(CALLS):
                call()
        graph.replay()
        return round(timed(graph.replay, 1) / CALLS, 2)
    except RuntimeError as error:
        print(f"no graph: {error}", file=sys.stderr)
        return None


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
    parser.add_argument("--tiles", default="256")
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--overlap", action="store_true")
    options = parser.parse_args()
    rank = os.environ.get("EXCHANGE_RANK")
    if rank is not None:
        work(int(rank), options)
        return
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    environment = os.environ | {"EXCHANGE_PORT": port}
    started = [
        subprocess.Popen([sys.executable, *sys.argv], env=environment | {"EXCHANGE_RANK": str(number)})
        for number in range(options.ranks)
    ]
    sys.exit(max(process.wait() for process in started))


if __name__ == "__main__":
    main()
