"""Routed NVFP4 experts at GLM-5.3-Flash's geometry on a GPU: time, floor, ratio, and bfloat16 experts beside.

    python benchmarks/experts.py [--rows 1 8 32 128 512 2048 8192] [--resident] [--peers] [--json FILE]

288 experts, gate and up [4096, 4096], down [4096, 2048], the best 8 of each row chosen uniformly at random.
Weights are random and made on the device. A figure is the median of replays of one CUDA graph over 0.25 s,
after a pause of 0.3 s; the graph holds calls with different routings, which together read far more than the
L2 cache holds. `whole` is everything from normed rows to the weighted sum with the shared part added:
sorting, ordering x, both products with activation and clamp, and the sum; `products` the two products.
The floor is the stored bytes of the experts that are met, and rows of x and of the results, over the
bandwidth of a copy measured at the start, or the products at the dense bfloat16 rate that is given, whichever
is longer. `small` is `whole` with block scales compressed in memory (--resident), `router` the choice of
experts before it. With --peers also torch's grouped bfloat16 product of the same rows, where it has one.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from intarsia.evidence.synthetic.values import random_stored
from intarsia.formats.stored import Stored
from intarsia.kernels import choice
from intarsia.kernels.experts import PackedExperts, packed_launch, prepare, routed_experts
from intarsia.kernels.router import Routing, route
from intarsia.kernels.rows import Rows

EXPERTS, INNER, WIDTH, TOP, LIMIT = 288, 2048, 4096, 8, 10.0
ROWS = (1, 8, 32, 128, 512, 2048, 8192)
DENSE_RATE = 790e12  # measured of cuBLAS on one H200 before its clock drops
PAUSE, BUDGET = 0.3, 0.25

Call = Callable[[], object]


def microseconds(calls: Sequence[Call]) -> float:
    """The median time of one call, all of them in one graph."""
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

    replay()
    time.sleep(PAUSE)
    count = max(7, min(80, int(BUDGET * 1e6 / (replay() * len(calls)))))
    return statistics.median(replay() for _ in range(count))


def bandwidth() -> float:
    """Bytes a second of copying 2 GiB, read and write counted."""
    source = torch.ones(1 << 28, dtype=torch.float32, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / (microseconds([lambda: torch.add(source, 1.0, out=target)]) * 1e-6)


def stack(rows: int, columns: int, parts: int, generator: torch.Generator) -> Stored:
    flat = random_stored("NVFP4", EXPERTS * rows, columns, generator)
    tensors = {
        "weight": flat["weight"].view(EXPERTS, rows, -1),
        "weight_scale": flat["weight_scale"].view(EXPERTS, rows, -1),
        "weight_scale_2": flat["weight_scale_2"].expand(EXPERTS, parts).contiguous(),
    }
    return Stored("NVFP4", tensors, (EXPERTS, rows, columns))


def routings(rows: int, generator: torch.Generator) -> list[Routing]:
    """As many as read 600 MB of experts, at most 16; for one row no expert twice."""
    count = 16 if rows <= 4 else 4 if rows <= 128 else 1
    found = []
    once = torch.rand(EXPERTS, generator=generator, device="cuda").argsort()
    for index in range(count):
        if rows == 1:
            chosen = once[index * TOP : (index + 1) * TOP].unsqueeze(0)
        else:
            chosen = torch.rand(rows, EXPERTS, generator=generator, device="cuda").topk(TOP).indices
        found.append(Routing(chosen.int(), torch.rand(rows, TOP, generator=generator, device="cuda")))
    return found


def floor_us(rows: int, used: float, one: int, bytes_a_second: float) -> float:
    moved = used * one + rows * (2 * WIDTH + 4 * WIDTH * 2)
    flops = 2 * rows * TOP * 3 * WIDTH * INNER
    return max(moved / bytes_a_second, flops / DENSE_RATE) * 1e6


def whole_call(
    x: Tensor, routing: Routing, gate_up: PackedExperts, down: PackedExperts, plus: Tensor
) -> Callable[[], Tensor]:
    return lambda: routed_experts(x, routing, gate_up, down, LIMIT, plus)


def products(x: Tensor, routing: Routing, gate_up: PackedExperts, down: PackedExperts) -> Call:
    """The two products of a step whose lists are there."""
    run = packed_launch.Run(routing.experts, gate_up, down, LIMIT)
    run.group(x)
    inner = torch.empty(run.pairs, INNER, dtype=torch.bfloat16, device="cuda")
    parts = torch.empty(run.pairs, WIDTH, dtype=torch.float32, device="cuda")

    def call() -> None:
        run.product(run.groups.x, gate_up, inner)
        run.product(inner, down, parts)

    return call


def router_us(x: Tensor, generator: torch.Generator) -> float:
    """Choosing the experts of x, with its scores; sixteen routers in turn."""
    count = x.shape[0]
    weights = torch.randn(16, EXPERTS, WIDTH, generator=generator, device="cuda", dtype=torch.bfloat16)
    bias = torch.randn(EXPERTS, generator=generator, device="cuda")
    zeros = torch.zeros(count, dtype=torch.int32, device="cuda")
    starts = torch.tensor([0, count], dtype=torch.int32, device="cuda")
    rows = Rows(zeros.long(), zeros, zeros, starts, zeros[:1].unsqueeze(1), 1)
    return microseconds([route_call(x, weight, bias, rows) for weight in weights])


def route_call(x: Tensor, weight: Tensor, bias: Tensor, rows: Rows) -> Call:
    return lambda: route(x, weight, bias, rows, top=TOP, scaling=2.5)


def grouped_bfloat16(rows: int, generator: torch.Generator) -> float | None:
    """torch's grouped product of sorted rows through bfloat16 experts of the same shapes."""
    if not hasattr(torch, "_grouped_mm"):
        return None
    first = torch.randn(EXPERTS, 2 * INNER, WIDTH, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    second = torch.randn(EXPERTS, WIDTH, INNER, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    x = torch.randn(rows * TOP, WIDTH, generator=generator, device="cuda", dtype=torch.bfloat16)
    inner = torch.randn(rows * TOP, INNER, generator=generator, device="cuda", dtype=torch.bfloat16)
    chosen = routings(rows, generator)[0].experts.flatten().long()
    ends = torch.bincount(chosen, minlength=EXPERTS).cumsum(0).int()
    return microseconds(
        [lambda: (torch._grouped_mm(x, first, offs=ends), torch._grouped_mm(inner, second, offs=ends))]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS))
    parser.add_argument("--resident", action="store_true")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if reason := choice.no_gluon(torch.device("cuda" if torch.cuda.is_available() else "cpu")):
        sys.exit(f"needs a Hopper GPU and triton: {reason}")
    import triton

    generator = torch.Generator("cuda").manual_seed(0)
    found: dict[str, object] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "bytes_a_second": (rate := bandwidth()),
    }
    print(*(f"{key} {value}" for key, value in found.items()), sep=" · ")
    gate_up, down = stack(2 * INNER, WIDTH, 2, generator), stack(WIDTH, INNER, 1, generator)
    one = (gate_up.nbytes + down.nbytes) // EXPERTS
    copies = (gate_up.clone(), down.clone()) if options.resident else ()
    begin = time.perf_counter()
    tiles = prepare(gate_up, down, torch.bfloat16, torch.device("cuda"))
    torch.cuda.synchronize()
    print(f"laid out in tiles in {time.perf_counter() - begin:.3f} s")
    small = prepare(*copies, torch.bfloat16, torch.device("cuda"), resident=True) if copies else ()
    for plain, less in zip(tiles, small, strict=False):
        print(f"scales of {less.shape}: {less.scales.nbytes / plain.scales.nbytes:.3f} of the plain bytes")
    print(
        f"{'rows':>5} {'whole':>9} {'products':>9} {'floor':>8} {'ratio':>6} {'small':>9} {'router':>7}"
        f" {'grouped':>8}"
    )
    rows_found = []
    for rows in options.rows:
        chosen = routings(rows, generator)
        x = torch.randn(rows, WIDTH, generator=generator, device="cuda", dtype=torch.bfloat16)
        plus = torch.randn(rows, WIDTH, generator=generator, device="cuda")
        calls = [whole_call(x, routing, *tiles, plus) for routing in chosen]
        if not bool(torch.isfinite(calls[0]()).all()):
            sys.exit("a result is not finite")
        whole = microseconds(calls)
        less = microseconds([whole_call(x, r, *small, plus) for r in chosen]) if small else None
        router = router_us(x, generator)
        alone = microseconds([products(x, r, *tiles) for r in chosen])
        used = statistics.mean(routing.experts.unique().numel() for routing in chosen)
        floor = floor_us(rows, used, one, rate)
        peer = grouped_bfloat16(rows, generator) if options.peers else None
        mid = f"{less:9.1f}" if less else f"{'-':>9}"
        other = f"{peer:8.1f}" if peer else f"{'-':>8}"
        ratio = whole / floor
        print(
            f"{rows:5} {whole:9.1f} {alone:9.1f} {floor:8.1f} {ratio:6.2f} {mid} {router:7.1f} {other}",
            flush=True,
        )
        rows_found.append(
            {
                "rows": rows,
                "us": whole,
                "products_us": alone,
                "floor_us": floor,
                "resident_us": less,
                "router_us": router,
                "peer_us": peer,
            }
        )
    if options.json:
        options.json.write_text(json.dumps(found | {"rows": rows_found}, indent=1))


if __name__ == "__main__":
    main()
