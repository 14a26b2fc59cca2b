"""Latent attention's kernels at GLM-5.3-Flash's geometry: time, floor and ratio.

    python benchmarks/attention.py [--only whole decode index prompt] [--json FILE]

Random contents made on the device. Every figure is the median of 15 replays of one CUDA graph of several
calls that take turns with different streams or weights, so that what a call reads is not in the L2 cache. The
floor is the bytes that must move over the bandwidth measured at the start, or the operations over 790 TFLOP/s
where that takes longer. Exits with 1 when a result is not finite.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from intarsia.kernels import choice
from intarsia.kernels.indexer import launch as indexer
from intarsia.kernels.indexer import selected_width
from intarsia.kernels.mla import IndexKeys, Latents, entry, products
from intarsia.kernels.mla import launch as mla
from intarsia.kernels.rows import Rows

HEADS, KEY, VALUE, LATENT, QUERY = 64, 256, 256, 512, 1536
INDEX_HEADS, WIDTH, GROUP, TOP, PAGE = 32, 128, 4, 2048, 512
SLOTS = selected_width(TOP, GROUP)
REPLAYS, TURNS = 15, 8
FLOPS = 790e12
CONTEXTS = (4096, 131072)
ROWS = (1, 8, 32)
POOL_PAGES = 2048  # 2.1 GB of latents: 16 streams of 64k tokens, longer ones share pages

Call = Callable[[], Tensor]


def microseconds(calls: Sequence[Call]) -> float:
    """The median time of one call, all of them in one graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            if not bool(torch.isfinite(call().float()).all()):
                sys.exit("a result is not finite")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    times = []
    for _ in range(REPLAYS + 2):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / len(calls))
    return statistics.median(times[2:])


def bandwidth() -> float:
    """Bytes a second of reading and writing 4 GiB in all."""
    source = torch.ones(1 << 29, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / (microseconds([lambda: torch.add(source, 1.0, out=target)]) * 1e-6)


class Bench:
    """Caches and weights that all cases share, and the table."""

    def __init__(self) -> None:
        self.bytes_a_second = bandwidth()
        self.generator = torch.Generator("cuda").manual_seed(0)
        self.latents = self.numbers(POOL_PAGES, PAGE, LATENT)
        self.pooled = self.numbers(POOL_PAGES, PAGE // GROUP, WIDTH)
        self.kv_b = [self.numbers(HEADS * (KEY + VALUE), LATENT) for _ in range(TURNS)]
        self.rows: list[dict[str, object]] = []

    def numbers(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(shape, generator=self.generator, device="cuda", dtype=dtype) * 0.3

    def step(self, rows: int, context: int, turn: int, *, prompt: bool) -> Rows:
        """One row of each of `rows` streams at the end of its context, or the last rows of one prompt."""
        pages = -(-context // PAGE)
        streams = 1 if prompt else rows
        order = torch.arange(streams * pages, device="cuda") + turn * streams * pages
        table = (order * 797 % POOL_PAGES).int().view(streams, pages)
        first = context - rows if prompt else context - 1
        places = torch.arange(rows, device="cuda", dtype=torch.int32)
        return Rows(
            tokens=torch.zeros(rows, dtype=torch.int64, device="cuda"),
            positions=first + places if prompt else torch.full_like(places, first),
            streams=torch.zeros_like(places) if prompt else places,
            starts=torch.tensor([0, rows] if prompt else list(range(rows + 1)), device="cuda").int(),
            page_table=table,
            recurrent_segments=0 if prompt else rows,
        )

    def selection(self, rows: Rows) -> Tensor:
        """Pools at random, rising; none is of use beyond the row."""
        count = rows.positions.shape[0]
        selected = torch.full((count, SLOTS), -1, dtype=torch.int32, device="cuda")
        for row, position in enumerate(rows.positions.tolist()):
            pools = (position + 1) // GROUP
            kept = torch.randperm(pools, device="cuda")[: TOP // GROUP].sort().values
            tokens = (kept.unsqueeze(1) * GROUP + torch.arange(GROUP, device="cuda")).flatten()
            selected[row, : len(tokens)] = tokens.int()
        return selected

    def add(self, what: str, rows: int, context: int, us: float, moved: float, operations: float = 0) -> None:
        floor = max(moved / self.bytes_a_second, operations / FLOPS) * 1e6
        print(f"{what:18} {rows:6} {context:8} {us:9.1f} {floor:8.1f} {us / floor:7.2f}", flush=True)
        self.rows.append({"what": what, "rows": rows, "context": context, "us": us, "floor_us": floor})


def attention(bench: Bench, rows: int, context: int, *, prompt: bool) -> None:
    """Attention by each kernel; a prompt's rows share most of what they read: bytes are counted once."""
    turns = 1 if prompt else TURNS
    steps = [bench.step(rows, context, turn, prompt=prompt) for turn in range(turns)]
    chosen = [bench.selection(step) for step in steps]
    q = bench.numbers(rows, HEADS, LATENT)
    seen = min(context, TOP)
    read = (context if prompt else rows * seen) * LATENT * 2 + 2 * q.nbytes
    for name in ("gluon", "triton"):
        calls = [
            lambda s=s, c=c, name=name: mla.attend(q, bench.latents, c, s, KEY**-0.5, name=name)
            for s, c in zip(steps, chosen, strict=True)
        ]
        us = microseconds(calls)
        bench.add(f"attend, {name}", rows, context, us, read, 4.0 * rows * HEADS * seen * LATENT)


def heads(bench: Bench, rows: int) -> None:
    q, latents = bench.numbers(rows, HEADS, KEY), bench.numbers(rows, HEADS, LATENT)
    operations = 2.0 * rows * HEADS * KEY * LATENT
    moved = bench.kv_b[0].nbytes / 2 + q.nbytes + latents.nbytes
    calls = [lambda w=w: products.absorb(q, w, KEY, VALUE) for w in bench.kv_b]
    bench.add("absorb keys", rows, 0, microseconds(calls), moved, operations)
    calls = [lambda w=w: products.expand(latents, w, KEY, VALUE) for w in bench.kv_b]
    bench.add("expand values", rows, 0, microseconds(calls), moved, operations)


def entering(bench: Bench, rows: int, *, prompt: bool) -> None:
    step = bench.step(rows, max(4096, rows), 0, prompt=prompt)
    raw = bench.numbers(rows, QUERY + LATENT + 2 * WIDTH).split([QUERY, LATENT, WIDTH, WIDTH], -1)
    tail = bench.numbers(rows, 11, 2 * WIDTH)
    latents = Latents(raw[0], raw[1], bench.numbers(QUERY), bench.numbers(LATENT), 1e-5, bench.latents)
    bias, ape = bench.numbers(WIDTH), bench.numbers(GROUP, WIDTH)
    keys = IndexKeys(raw[2], raw[3], bench.numbers(WIDTH), bias, 1e-6, ape, tail, bench.pooled)
    calls = [lambda: entry.launch(latents, keys, step)] * TURNS
    bench.add("enter rows", rows, 0, microseconds(calls), rows * (QUERY + LATENT + 2 * WIDTH) * 4)


def choosing(bench: Bench, rows: int, context: int, *, prompt: bool) -> None:
    """Scores and selection, together and the selection alone."""
    turns = 1 if prompt else TURNS
    steps = [bench.step(rows, context, turn, prompt=prompt) for turn in range(turns)]
    q, weights = (
        bench.numbers(rows, INDEX_HEADS, WIDTH),
        bench.numbers(rows, INDEX_HEADS, dtype=torch.float32),
    )
    calls = [lambda step=step: indexer.launch(q, weights, bench.pooled, step, TOP, GROUP) for step in steps]
    pools = context // GROUP
    read = (1 if prompt else rows) * pools * WIDTH * 2 + rows * SLOTS * 4
    operations = 2.0 * rows * INDEX_HEADS * WIDTH * pools
    bench.add("choose tokens", rows, context, microseconds(calls), read, operations)
    size = min(rows, (1 << 28) // pools)
    scores = bench.numbers(size, pools, dtype=torch.float32)
    selected = torch.empty(rows, SLOTS, dtype=torch.int32, device="cuda")

    def select() -> Tensor:
        step = steps[0]
        indexer.launch_selection(scores, step.positions, step.streams, TOP, GROUP, selected)
        return selected

    bench.add("selection alone", size, context, microseconds([select] * turns), size * (pools + SLOTS) * 4)


def layer(bench: Bench, rows: int, context: int, *, prompt: bool = False) -> None:
    """Everything of a layer between its projections, one after another as in a step."""
    turns = 1 if prompt else TURNS
    steps = [bench.step(rows, context, turn, prompt=prompt) for turn in range(turns)]
    raw = bench.numbers(rows, QUERY + LATENT + 2 * WIDTH).split([QUERY, LATENT, WIDTH, WIDTH], -1)
    latents = Latents(raw[0], raw[1], bench.numbers(QUERY), bench.numbers(LATENT), 1e-5, bench.latents)
    tail, ape = bench.numbers(rows, 11, 2 * WIDTH), bench.numbers(GROUP, WIDTH)
    norm, bias = bench.numbers(WIDTH), bench.numbers(WIDTH)
    keys = IndexKeys(raw[2], raw[3], norm, bias, 1e-6, ape, tail, bench.pooled)
    q, queries = bench.numbers(rows, HEADS, KEY), bench.numbers(rows, INDEX_HEADS, WIDTH)
    weights = bench.numbers(rows, INDEX_HEADS, dtype=torch.float32)

    def call(step: Rows, kv_b: Tensor) -> Tensor:
        entry.launch(latents, keys, step)
        selected = indexer.launch(queries, weights, bench.pooled, step, TOP, GROUP)
        absorbed = products.absorb(q, kv_b, KEY, VALUE, settled=True)
        attended = mla.attend(absorbed, bench.latents, selected, step, KEY**-0.5, name="gluon")
        return products.expand(attended, kv_b, KEY, VALUE)

    calls = [lambda s=s, w=w: call(s, w) for s, w in zip(steps, bench.kv_b[:turns], strict=True)]
    seen, pools = min(context, TOP), context // GROUP
    streams = 1 if prompt else rows
    read = (streams * context if prompt else rows * seen) * LATENT * 2 + streams * pools * WIDTH * 2
    operations = (
        4.0 * rows * HEADS * (seen * LATENT + KEY * LATENT) + 2.0 * rows * INDEX_HEADS * WIDTH * pools
    )
    bench.add("between products", rows, context, microseconds(calls), read + bench.kv_b[0].nbytes, operations)


def whole(bench: Bench) -> None:
    for context in (100, *CONTEXTS):
        for rows in ROWS:
            layer(bench, rows, context)
    layer(bench, 1024, 8192, prompt=True)


def decode(bench: Bench) -> None:
    for context in (100, *CONTEXTS):
        for rows in ROWS:
            attention(bench, rows, context, prompt=False)
    for rows in (*ROWS, 64):
        heads(bench, rows)
        entering(bench, rows, prompt=False)


def index(bench: Bench) -> None:
    for context in (100, *CONTEXTS, 1 << 20):
        for rows in ROWS:
            choosing(bench, rows, context, prompt=False)
    choosing(bench, 1024, 8192, prompt=True)
    choosing(bench, 1024, 131072, prompt=True)


def prompt(bench: Bench) -> None:
    for context in (1024, 8192):
        attention(bench, 1024, context, prompt=True)
    attention(bench, 2048, 8192, prompt=True)
    heads(bench, 1024)
    entering(bench, 1024, prompt=True)


PARTS = {"whole": whole, "decode": decode, "index": index, "prompt": prompt}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if reason := choice.no_triton(torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")):
        sys.exit(f"needs a GPU and triton: {reason}")
    import triton

    bench = Bench()
    machine = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "bytes_a_second": bench.bytes_a_second,
    }
    print(*(f"{key} {value}" for key, value in machine.items()), sep=" · ")
    print(f"{'operation':18} {'rows':>6} {'context':>8} {'us':>9} {'floor':>8} {'ratio':>7}")
    for part in options.only:
        PARTS[part](bench)
    if options.json:
        options.json.write_text(json.dumps(machine | {"rows": bench.rows}, indent=1))


if __name__ == "__main__":
    main()
