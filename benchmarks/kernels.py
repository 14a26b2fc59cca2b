"""GPU kernels at GLM-5.3-Flash's geometry: time, floor, ratio, and cuBLAS on BF16 in the same process.

    python benchmarks/kernels.py [--only linear experts configurations] [--json FILE]

Random weights are made on the device. Every figure is the median of 15 replays of one CUDA graph of several
calls that take turns with different weights, experts or streams, so that what a call reads is not in the L2
cache. The floor is the bytes that must move over the bandwidth measured at the start (an elementwise
operation of torch over 4 GiB). Exits with 1 when a result is not finite.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

from intarsia.evidence.synthetic.values import random_stored
from intarsia.formats.stored import Stored
from intarsia.kernels import choice
from intarsia.kernels.experts import launch as experts_launch
from intarsia.kernels.experts import routed_experts
from intarsia.kernels.linear import launch as linear_launch
from intarsia.kernels.linear import linear
from intarsia.kernels.router import Routing

REPLAYS = 15
L2_BYTES = 50 << 20  # of the largest card this is for; weights in turn cover it four times
MATRICES = (
    ("KDA in", "MXFP8", 24576, 4096),
    ("KDA o", "MXFP8", 4096, 8192),
    ("head", "MXFP8", 154880, 4096),
    ("MLA q_b", "FP8_PB_WO", 16384, 1536),
    ("MLA o", "FP8_PB_WO", 4096, 16384),
    ("head as BF16", "BF16", 154880, 4096),
)
ROWS = (1, 8, 16, 64)
EXPERTS, INNER, WIDTH, TOP, LIMIT = 288, 2048, 4096, 8, 10.0
EXPERT_ROWS = (1, 8, 32, 128)
EXPERT_TILES = ((128, 4), (128, 7), (256, 3))
LINEAR_TILES = ((128, 3), (128, 6), (256, 3))

Call = Callable[[], Tensor]


def microseconds(calls: Sequence[Call]) -> float:
    """The median time of one call, all of them in one graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            finite = bool(torch.isfinite(call()).all())
            if not finite:
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


class Table:
    """Prints a row when it is known and keeps all of them."""

    def __init__(self, bytes_a_second: float) -> None:
        self.bytes_a_second = bytes_a_second
        self.rows: list[dict[str, object]] = []
        print(
            f"{'operation':14} {'format':14} {'rows':>5} {'us':>9} {'floor':>8} {'ratio':>6}"
            f"{'cuBLAS BF16':>13}"
        )

    def add(
        self, operation: str, name: str, rows: int, us: float, moved: int, peer: float | None = None
    ) -> None:
        floor = moved / self.bytes_a_second * 1e6
        other = f"{peer:12.1f}" if peer is not None else f"{'-':>12}"
        print(
            f"{operation:14} {name:14} {rows:5} {us:9.1f} {floor:8.1f} {us / floor:6.2f} {other}", flush=True
        )
        row = {"operation": operation, "format": name, "rows": rows, "us": us, "floor_us": floor}
        self.rows.append(row | {"cublas_bf16_us": peer})


def in_turn(one: int) -> int:
    """How many weights of so many bytes cover the L2 cache four times."""
    return min(16, 1 + 4 * L2_BYTES // one)


def weight(name: str, rows: int, columns: int, generator: torch.Generator) -> Stored:
    if name != "BF16":
        return random_stored(name, rows, columns, generator)
    values = torch.randn(rows, columns, generator=generator, device="cuda", dtype=torch.bfloat16)
    return Stored("BF16", {"weight": values * columns**-0.5}, (rows, columns))


def bench_linear(table: Table, generator: torch.Generator) -> None:
    for operation, name, n, k in MATRICES:
        weights = [weight(name, n, k, generator)]
        weights += [weight(name, n, k, generator) for _ in range(in_turn(weights[0].nbytes) - 1)]
        wide = [torch.randn(n, k, device="cuda", dtype=torch.bfloat16) for _ in range(in_turn(2 * n * k))]
        for rows in ROWS:
            x = torch.randn(rows, k, generator=generator, device="cuda", dtype=torch.bfloat16)
            us = microseconds([lambda x=x, w=w: linear(x, w) for w in weights])
            peer = microseconds([lambda x=x, w=w: torch.nn.functional.linear(x, w) for w in wide])
            table.add(operation, name, rows, us, weights[0].nbytes + 2 * rows * (n + k), peer)
        del weights, wide
        torch.cuda.empty_cache()


def stack(rows: int, columns: int, generator: torch.Generator) -> Stored:
    flat = random_stored("NVFP4", EXPERTS * rows, columns, generator)
    tensors = {
        "weight": flat["weight"].view(EXPERTS, rows, -1),
        "weight_scale": flat["weight_scale"].view(EXPERTS, rows, -1),
        "weight_scale_2": flat["weight_scale_2"].expand(EXPERTS, 2).contiguous(),
    }
    return Stored("NVFP4", tensors, (EXPERTS, rows, columns))


def bench_experts(table: Table, generator: torch.Generator) -> None:
    gate_up, down = stack(2 * INNER, WIDTH, generator), stack(WIDTH, INNER, generator)
    for rows in EXPERT_ROWS:
        time_experts(table, generator, gate_up, down, rows, "NVFP4")


def time_experts(
    table: Table, generator: torch.Generator, gate_up: Stored, down: Stored, rows: int, label: str
) -> None:
    """Rows padded to 16 as in a step; uniform routing, another for each call."""
    one = (gate_up.nbytes + down.nbytes) // EXPERTS
    padded = max(16, rows)
    x = torch.randn(padded, WIDTH, generator=generator, device="cuda", dtype=torch.bfloat16)
    routings, used = [], []
    for _ in range(8):
        chosen = torch.rand(padded, EXPERTS, generator=generator, device="cuda").topk(TOP).indices.int()
        chosen[rows:] = -1
        used.append(chosen[:rows].unique().numel())
        routings.append(Routing(chosen, torch.rand(padded, TOP, generator=generator, device="cuda")))
    us = microseconds([lambda r=r: routed_experts(x, r, gate_up, down, LIMIT) for r in routings])
    moved = statistics.mean(used) * one + rows * (6 * WIDTH + TOP * (4 * INNER + 8 * WIDTH))
    table.add("experts", label, rows, us, int(moved))


def bench_configurations(table: Table, generator: torch.Generator) -> None:
    """Other tiles (columns, tiles in flight) than those in the tables, for the few-row forms."""
    gate_up, down = stack(2 * INNER, WIDTH, generator), stack(WIDTH, INNER, generator)
    for tile in EXPERT_TILES:
        with patch.dict(experts_launch._TILE, {"NVFP4": tile}):
            for rows in EXPERT_ROWS[:3]:
                time_experts(table, generator, gate_up, down, rows, f"NVFP4 {tile[0]}x{tile[1]}")
    for operation, name, n, k in MATRICES[:2]:
        weights = [weight(name, n, k, generator) for _ in range(in_turn(n * k))]
        x = torch.randn(16, k, generator=generator, device="cuda", dtype=torch.bfloat16)
        for tile in LINEAR_TILES:
            with patch.dict(linear_launch._TILE, {name: tile}):
                us = microseconds([lambda x=x, w=w: linear(x, w) for w in weights])
            table.add(operation, f"{name} {tile[0]}x{tile[1]}", 16, us, weights[0].nbytes + 32 * (n + k))


PARTS = {
    "linear": bench_linear,
    "experts": bench_experts,
    "configurations": bench_configurations,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS)[:3])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if reason := choice.no_triton(torch.device("cuda") if torch.cuda.is_available() else torch.device("cpu")):
        sys.exit(f"needs a GPU and triton: {reason}")
    import triton

    generator = torch.Generator("cuda").manual_seed(0)
    machine = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "bytes_a_second": bandwidth(),
    }
    print(*(f"{key} {value}" for key, value in machine.items()), sep=" · ")
    table = Table(machine["bytes_a_second"])
    for part in options.only:
        PARTS[part](table, generator)
    if options.json:
        options.json.write_text(json.dumps(machine | {"rows": table.rows}, indent=1))


if __name__ == "__main__":
    main()
