"""Routed NVFP4 experts from normed rows to their weighted sum, and the router before them."""

import statistics
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from intarsia.evidence.kernels.bench import Bench
from intarsia.evidence.kernels.timing import Call
from intarsia.evidence.synthetic.values import random_stack
from intarsia.kernels.errors import KernelError
from intarsia.kernels.experts import ExpertStack, PackedExperts, packed_launch, prepare, routed_experts
from intarsia.kernels.router import Routing, route
from intarsia.kernels.rows import Rows

ROWS = (1, 8, 32, 128, 512, 2048, 8192)
ROUTERS = 16
PRODUCTS, COMPRESSED, GROUPED = "the two products", "scales compressed", "torch._grouped_mm on BF16"
CASE, GROUPING = "routed experts NVFP4", "grouping"

Layer = tuple[ExpertStack, ExpertStack]


def measure(bench: Bench) -> None:
    """A layer's experts, the best of each row chosen uniformly at random, and the choice of them."""
    layer = _layer(bench)
    one = sum(stack.nbytes for stack in layer) // bench.config.n_routed_experts
    compressed = _compressed(bench, layer)
    tiles = prepare(*layer, torch.bfloat16, bench.device)
    for rows in bench.counts(ROWS):
        _measure(bench, rows, tiles, compressed, one)
        _router(bench, rows)


def moved(rows: int, met: float, one: int, width: int) -> float:
    """Bytes: the experts that are met as stored; x in BF16; the shared part and the sum in F32."""
    return met * one + rows * width * (2 + 4 + 4)


def _measure(bench: Bench, rows: int, tiles: Layer, compressed: Layer | None, one: int) -> None:
    config = bench.config
    width, top = config.hidden_size, config.num_experts_per_tok
    chosen = _routings(bench, rows)
    x, plus = bench.numbers(rows, width), bench.numbers(rows, width, dtype=torch.float32)

    def whole(layer: Layer) -> list[Callable[[], Tensor]]:
        return [partial(routed_experts, x, r, *layer, config.swiglu_limit, plus) for r in chosen]

    beside: dict[str, float] = {}
    taken = bench.finite(CASE, whole(tiles))
    gate_up, down = tiles
    if isinstance(gate_up, PackedExperts) and isinstance(down, PackedExperts):
        beside[PRODUCTS] = bench.us([_products(bench, x, r, gate_up, down) for r in chosen])
        _grouping(bench, x, chosen, gate_up, down)
    if compressed is not None:
        beside[COMPRESSED] = bench.us(whole(compressed))
    beside |= bench.peer(GROUPED, lambda: _grouped(bench, chosen[0]), compiles=False)
    met = statistics.mean(torch.unique(routing.experts).numel() for routing in chosen)
    operations = 2 * rows * top * 3 * width * config.moe_intermediate_size
    bench.table.add(
        "experts",
        CASE,
        rows,
        taken,
        moved=moved(rows, met, one, width),
        operations=operations,
        beside=beside,
    )


def _layer(bench: Bench) -> Layer:
    config = bench.config
    experts, inner, width = config.n_routed_experts, config.moe_intermediate_size, config.hidden_size
    gate_up = random_stack("NVFP4", (experts, 2 * inner, width), 2, bench.generator)
    return gate_up, random_stack("NVFP4", (experts, width, inner), 1, bench.generator)


def _compressed(bench: Bench, layer: Layer) -> Layer | None:
    """A copy of the layer with its block scales compressed, where the kernels take such."""
    copies = [stack.clone() for stack in layer]  # type: ignore[union-attr]
    try:
        return prepare(copies[0], copies[1], torch.bfloat16, bench.device, resident=True)
    except KernelError as error:
        bench.skipped.setdefault(COMPRESSED, error.found)
        return None


def _routings(bench: Bench, rows: int) -> list[Routing]:
    """As many as together read more than the L2 cache holds; with one row no expert twice."""
    experts, top = bench.config.n_routed_experts, bench.config.num_experts_per_tok
    count = min(16, experts // top) if rows <= 4 else 4 if rows <= 128 else 1
    once = torch.rand(experts, generator=bench.generator, device=bench.device).argsort()
    found = []
    for index in range(count):
        if rows == 1:
            chosen = once[index * top : (index + 1) * top].unsqueeze(0)
        else:
            drawn = torch.rand(rows, experts, generator=bench.generator, device=bench.device)
            chosen = drawn.topk(top).indices
        weights = torch.rand(rows, top, generator=bench.generator, device=bench.device)
        found.append(Routing(chosen.int(), weights))
    return found


def _products(bench: Bench, x: Tensor, routing: Routing, gate_up: PackedExperts, down: PackedExperts) -> Call:
    """The two products of a step whose lists are there."""
    config = bench.config
    run = packed_launch.Run(routing.experts, gate_up, down, config.swiglu_limit)
    run.group(x)
    inner = torch.empty(run.pairs, config.moe_intermediate_size, dtype=torch.bfloat16, device=bench.device)
    parts = torch.empty(run.pairs, config.hidden_size, dtype=torch.float32, device=bench.device)

    def call() -> None:
        run.product(run.groups.x, gate_up, inner)
        run.product(inner, down, parts)

    return call


def _grouping(
    bench: Bench, x: Tensor, chosen: Sequence[Routing], gate_up: PackedExperts, down: PackedExperts
) -> None:
    """Sorting the pairs into blocks of one expert, and x in the products' order; where there are so few that
    the products do without, there is no figure.
    """
    runs = [packed_launch.Run(r.experts, gate_up, down, bench.config.swiglu_limit) for r in chosen]
    if not runs[0].sorted:
        return
    runs[0].group(x)
    taken = bench.clock([partial(run.group, x) for run in runs])
    written = runs[0].groups.x.nbytes + 4 * runs[0].pairs
    bench.table.add("experts", GROUPING, x.shape[0], taken, moved=x.nbytes + 4 * runs[0].pairs + written)


def _router(bench: Bench, rows: int) -> None:
    """Scores and choice; routers in turn."""
    config = bench.config
    x = bench.numbers(rows, config.hidden_size)
    weights = bench.numbers(ROUTERS, config.n_routed_experts, config.hidden_size)
    bias = bench.numbers(config.n_routed_experts, dtype=torch.float32)
    zeros = bench.integers([0] * rows)
    where = Rows(zeros.long(), zeros, zeros, bench.integers([0, rows]), zeros[:1].unsqueeze(1), 1)
    top, scaling = config.num_experts_per_tok, config.routed_scaling_factor
    taken = bench.clock([partial(route, x, w, bias, where, top=top, scaling=scaling) for w in weights])
    read = weights[0].nbytes + bias.nbytes + x.nbytes + rows * top * 8
    operations = 2 * rows * weights[0].numel()
    bench.table.add("experts", "router BF16", rows, taken, moved=read, operations=operations)


def _grouped(bench: Bench, routing: Routing) -> Sequence[Call]:
    """torch's grouped products of sorted rows with BF16 experts of the same shapes, without activation."""
    product = torch._grouped_mm  # not there in every torch
    config = bench.config
    experts, inner, width = config.n_routed_experts, config.moe_intermediate_size, config.hidden_size
    first = bench.numbers(experts, 2 * inner, width).transpose(1, 2)
    second = bench.numbers(experts, width, inner).transpose(1, 2)
    chosen = routing.experts.flatten().long()
    x, middle = bench.numbers(len(chosen), width), bench.numbers(len(chosen), inner)
    ends = torch.bincount(chosen, minlength=experts).cumsum(0).int()
    return [lambda: (product(x, first, offs=ends), product(middle, second, offs=ends))]
