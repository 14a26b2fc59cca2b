"""Experts in tiles on a GPU: right for every skew, a row's bits its own, whatever kernel its step takes."""

from itertools import product
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from intarsia import formats
from intarsia.formats.stored import Stored
from intarsia.kernels import choice
from intarsia.kernels.experts import (
    PackedExperts,
    packed_launch,
    plan,
    prepare,
    routed_experts,
    swiglu,
    takes_arranged,
    unpack,
)
from intarsia.kernels.experts.plan import Few, Many
from intarsia.kernels.router import Routing, route
from intarsia.kernels.rows import NO_STREAM, Rows
from tests.kernels.steps import randn

pytestmark = pytest.mark.gpu

EXPERTS, INNER, WIDTH, TOP, LIMIT = 24, 512, 1024, 4, 10.0
COUNTS = [*range(1, 18), 32, 64, 65, 128, 384]
FORMS = [
    Few(pairs=8, quarters=4, depth=2, early_x=False),
    Few(pairs=16, quarters=2, depth=3, early_x=True),
    Few(pairs=16, quarters=4, depth=2, early_x=True, lists=False),
    Many(pairs=32, quarters=2, stages=4, depth=3),
    Many(pairs=64, quarters=2, stages=4, depth=2),
    Many(pairs=256, quarters=2, stages=2, depth=2, narrower=(32, 96, 160, 224)),
    *plan.forms(),
]


@pytest.fixture(autouse=True)
def needs_a_hopper():
    reason = choice.no_gluon(torch.device("cuda")) if torch.cuda.is_available() else "needs a CUDA device"
    if reason:
        pytest.skip(reason)


@pytest.fixture(autouse=True)
def poisoned_memory():
    """Memory that torch hands out again holds NaN, so that an output nobody writes shows."""
    if torch.cuda.is_available():
        torch.full((64 << 20,), torch.nan, device="cuda")
        torch.cuda.synchronize()


def gpu(*shape: int, seed: int) -> Tensor:
    return randn(*shape, seed=seed).cuda()


def stored_experts(name="NVFP4", inner=INNER, width=WIDTH, parts=2) -> tuple[Stored, Stored]:
    number_format = formats.get(name)
    gate_up = number_format.encode(0.2 * gpu(EXPERTS, 2 * inner, width, seed=11))
    down = number_format.encode(0.1 * gpu(EXPERTS, width, inner, seed=12))
    if parts == 2:
        scale = gate_up["weight_scale_2"]
        tensors = dict(gate_up.tensors) | {"weight_scale_2": torch.stack([scale, 1.7 * scale], 1)}
        gate_up = Stored(name, tensors, gate_up.shape)
    return gate_up, down


def with_odd_scales(stored: Stored) -> Stored:
    """One scale in a hundred is any number at all."""
    scales = stored["weight_scale"].view(torch.uint8)
    generator = torch.Generator("cuda").manual_seed(25)
    odd = torch.rand(scales.shape, generator=generator, device="cuda") < 0.01
    other = torch.randint(0, 127, scales.shape, generator=generator, device="cuda", dtype=torch.uint8)
    changed = torch.where(odd, other, scales).view(torch.float8_e4m3fn)
    return Stored(stored.format, dict(stored.tensors) | {"weight_scale": changed}, stored.shape)


def in_tiles(*stored: Stored, resident=False) -> tuple[PackedExperts, PackedExperts]:
    copies = [stack.clone() for stack in stored]
    return prepare(*copies, torch.bfloat16, torch.device("cuda"), resident=resident)


def routing(kind: str, rows: int, top=TOP) -> Routing:
    generator = torch.Generator().manual_seed(13)
    if kind in ("random", "mostly_padding"):
        chosen = torch.stack([torch.randperm(EXPERTS, generator=generator)[:top] for _ in range(rows)])
    elif kind == "all_to_the_same":
        chosen = torch.tensor([EXPERTS - 1, 0, 5, 6][:top]).repeat(rows, 1)
    else:
        chosen = torch.full((rows, top), 7)
    if kind == "mostly_padding":
        chosen[1:] = -1
    return Routing(chosen.int().cuda(), torch.rand(rows, top, generator=generator).cuda())


def exact(x: Tensor, chosen: Routing, gate_up: Stored, down: Stored) -> Tensor:
    first, second = (
        formats.get(stack.format).decode(stack, torch.float32).double() for stack in (gate_up, down)
    )
    out = torch.zeros(x.shape, dtype=torch.float64, device="cuda")
    for expert in range(EXPERTS):
        where, slot = (chosen.experts == expert).nonzero(as_tuple=True)
        inner = swiglu((x[where].double() @ first[expert].T).float(), LIMIT).bfloat16().double()
        out.index_add_(0, where, chosen.weights[where, slot, None].double() * (inner @ second[expert].T))
    return out


def same_bytes(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


@pytest.mark.parametrize("name", ["NVFP4", "W4A16_NVFP4"])
def test_tiles_are_taken_where_rows_are_bfloat16_and_give_the_stored_bytes_back(name):
    stored = stored_experts(name)
    tiles = in_tiles(*stored)
    assert all(isinstance(stack, PackedExperts) for stack in tiles)
    assert prepare(*stored, torch.float32, torch.device("cuda")) == stored
    for stack, packed in zip(stored, tiles, strict=True):
        assert all(same_bytes(packed.expert(3)[key], stack.expert(3)[key]) for key in stack)
        back = unpack(packed)
        assert all(same_bytes(back[key], stack[key]) for key in stack)


@pytest.mark.parametrize("parts", [1, 2])
def test_experts_are_right_for_every_skew_and_number_of_rows(parts):
    stored = stored_experts(parts=parts)
    tiles = in_tiles(*stored)
    wrong = []
    for kind in ("random", "all_to_the_same", "one_expert", "mostly_padding"):
        for rows in (1, 2, 7, 16, 17, 64, 144, 384, 1024):
            x, chosen = gpu(rows, WIDTH, seed=14).bfloat16(), routing(kind, rows)
            x[(chosen.experts < 0).all(1)] = torch.nan
            got = routed_experts(x, chosen, *tiles, LIMIT)
            expected = exact(x.nan_to_num(), chosen, *stored)
            error = float((got.double() - expected).abs().max() / expected.abs().max())
            if not error <= 5e-3 or not (got[(chosen.experts < 0).all(1)] == 0).all():
                wrong.append((kind, rows, error))
    assert not wrong


@pytest.mark.parametrize(("inner", "width"), [(128, 384), (384, 640)])
def test_odd_widths(inner, width):
    stored = stored_experts(inner=inner, width=width)
    tiles = in_tiles(*stored)
    for rows in (1, 64, 400):
        x, chosen = gpu(rows, width, seed=15).bfloat16(), routing("random", rows)
        expected = exact(x, chosen, *stored)
        got = routed_experts(x, chosen, *tiles, LIMIT).double()
        assert (got - expected).abs().max() <= 5e-3 * expected.abs().max(), rows


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_every_kernel_gives_the_same_bits(form):
    """Products of sixteen rows and of warp groups, few rows a block and many, a program for one block and for
    all of them, scales as stored and compressed.
    """
    stored = [with_odd_scales(stack) for stack in stored_experts()]
    tiles, small = in_tiles(*stored), in_tiles(*stored, resident=True)
    assert all(2000 < stack.scales.records.shape[0] < stack.scales.nibbles.numel() // 4 for stack in small)
    different = []
    for kind, rows in product(("random", "one_expert", "mostly_padding"), (1, 3, 16, 40, 300)):
        x, chosen = gpu(rows, WIDTH, seed=16).bfloat16(), routing(kind, rows)
        with patch.object(plan, "form_of", lambda *_: FORMS[0]):
            expected = routed_experts(x, chosen, *tiles, LIMIT)
        for count, stacks in product((1, 5, 1000), (tiles, small)):
            with (
                patch.object(plan, "form_of", lambda *_: form),
                patch.object(plan, "programs", lambda *given, count=count: min(given[1], count)),
            ):
                got = routed_experts(x, chosen, *stacks, LIMIT)
            if not torch.equal(got, expected):
                error = float((got - expected).abs().max())
                different.append((kind, rows, count, stacks is small, error))
    assert not different


def test_bits_of_a_routed_row_do_not_depend_on_other_rows():
    tiles = in_tiles(*stored_experts())
    x, chosen = gpu(1024, WIDTH, seed=17).bfloat16(), routing("random", 1024)
    whole = routed_experts(x, chosen, *tiles, LIMIT)
    wrong = []
    for count in COUNTS:
        for first in (0, 1024 - count):
            part = slice(first, first + count)
            some = Routing(chosen.experts[part], chosen.weights[part])
            if not torch.equal(routed_experts(x[part], some, *tiles, LIMIT), whole[part]):
                wrong.append((count, first))
    assert not wrong
    with patch.object(packed_launch, "MOST_ROWS", 100):
        assert torch.equal(routed_experts(x, chosen, *tiles, LIMIT), whole)


@pytest.mark.parametrize("rows", [1, 5, 8, 16])
def test_rows_that_the_router_put_in_order_give_the_same_bits(rows):
    tiles = in_tiles(*stored_experts(width=4096))
    x = gpu(rows, 4096, seed=26).bfloat16()
    x[rows - 1] = torch.nan
    x[: max(1, rows - 1)] = gpu(max(1, rows - 1), 4096, seed=27).bfloat16()
    weight, bias = gpu(EXPERTS, 4096, seed=28).bfloat16(), gpu(EXPERTS, seed=29)
    settings = {"top": TOP, "scaling": 2.5}
    step = some_rows(rows, max(1, rows - 1))
    plain = route(x, weight, bias, step, **settings)
    chosen = route(x, weight, bias, step, **settings, arrange=takes_arranged(x, *tiles, TOP))
    assert plain.arranged is None
    assert (chosen.arranged is not None) == (rows * TOP <= 64)
    assert torch.equal(plain.experts, chosen.experts)
    assert torch.equal(plain.weights, chosen.weights)
    assert torch.equal(routed_experts(x, plain, *tiles, LIMIT), routed_experts(x, chosen, *tiles, LIMIT))


def some_rows(rows: int, real: int) -> Rows:
    streams = torch.zeros(rows, dtype=torch.int32)
    streams[real:] = NO_STREAM
    return Rows(
        tokens=torch.zeros(rows, dtype=torch.int64, device="cuda"),
        positions=torch.zeros(rows, dtype=torch.int32, device="cuda"),
        streams=streams.cuda(),
        starts=torch.tensor([0, real], dtype=torch.int32, device="cuda"),
        page_table=torch.zeros(1, 4, dtype=torch.int32, device="cuda"),
        recurrent_segments=0,
    )


def test_the_gate_is_clamped_from_above_and_the_up_part_from_both_sides():
    stored = stored_experts()
    tiles = in_tiles(*stored)
    x, chosen = 30 * gpu(16, WIDTH, seed=18).bfloat16(), routing("random", 16)
    expected = exact(x, chosen, *stored)
    got = routed_experts(x, chosen, *tiles, LIMIT).double()
    assert (got - expected).abs().max() <= 5e-3 * expected.abs().max()


def test_every_code_under_every_scale():
    """One row of all codes for each of the 127 scales, with x picking single columns."""
    codes = torch.arange(256, dtype=torch.uint8).repeat(128, 2).cuda()  # 1024 columns
    scales = torch.arange(128, dtype=torch.uint8).clamp(max=126).unsqueeze(1).repeat(1, 64).cuda()
    weight = {
        "weight": codes.repeat(EXPERTS, 2, 1),
        "weight_scale": scales.repeat(EXPERTS, 2, 1).view(torch.float8_e4m3fn),
        "weight_scale_2": torch.full([EXPERTS], 2.0**-6, device="cuda"),
    }
    gate_up = Stored("NVFP4", weight, (EXPERTS, 256, 1024))
    down = formats.get("NVFP4").encode(gpu(EXPERTS, 1024, 128, seed=19))
    tiles = in_tiles(gate_up, down)
    rows = 64
    x = torch.zeros(rows, 1024, device="cuda", dtype=torch.bfloat16)
    x[torch.arange(rows), torch.arange(rows) * 8 + torch.arange(rows) % 8] = 1
    chosen = routing("random", rows, top=1)
    expected = exact(x, chosen, gate_up, down)
    got = routed_experts(x, chosen, *tiles, LIMIT).double()
    assert (got - expected).abs().max() <= 5e-3 * expected.abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_swiglu_of_a_dense_block(dtype):
    for rows, width in ((1, 2048), (17, 700), (64, 12288)):
        both = (6 * gpu(rows, 2 * width, seed=24)).to(dtype)
        gate, up = both.double().chunk(2, 1)
        gate = gate.clamp(max=LIMIT)
        expected = gate / (1 + torch.exp(-gate)) * up.clamp(-LIMIT, LIMIT)
        got = swiglu(both, LIMIT)
        assert got.dtype == dtype
        near = 2.0**-8 if dtype == torch.bfloat16 else 1e-6
        assert ((got.double() - expected).abs() <= near * expected.abs() + 1e-6).all()
        assert torch.equal(swiglu(both[:1], LIMIT), got[:1])


def test_what_is_added_at_last():
    stored = stored_experts()
    tiles = in_tiles(*stored)
    for rows in (3, 300):
        x, chosen = gpu(rows, WIDTH, seed=20).bfloat16(), routing("mostly_padding", rows)
        plus = gpu(rows, WIDTH, seed=21)
        alone = routed_experts(x, chosen, *tiles, LIMIT)
        assert torch.equal(routed_experts(x, chosen, *tiles, LIMIT, plus), alone + plus)
        stored_alone = routed_experts(x, chosen, *stored, LIMIT)
        assert torch.equal(routed_experts(x, chosen, *stored, LIMIT, plus), stored_alone + plus)


def test_the_reference_reads_tiles_too():
    stored = stored_experts()
    tiles = in_tiles(*stored)
    x, chosen = gpu(16, WIDTH, seed=22).bfloat16(), routing("random", 16)
    with choice.forced("reference"):
        got, expected = (routed_experts(x, chosen, *stacks, LIMIT) for stacks in (tiles, stored))
    assert torch.equal(got, expected)


@pytest.mark.parametrize("rows", [1, 16, 64, 512])
def test_a_captured_graph_gives_the_eager_bits(rows):
    tiles = in_tiles(*stored_experts())
    x, chosen = gpu(rows, WIDTH, seed=23).bfloat16(), routing("random", rows)
    expected = [routed_experts(x, chosen, *tiles, LIMIT) for _ in range(2)][1]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = routed_experts(x, chosen, *tiles, LIMIT)
        second = routed_experts(first.bfloat16(), chosen, *tiles, LIMIT)
    again = routed_experts(expected.bfloat16(), chosen, *tiles, LIMIT)
    for _ in range(3):
        first.fill_(torch.nan)
        second.fill_(torch.nan)
        graph.replay()
        assert torch.equal(first, expected)
        assert torch.equal(second, again)
