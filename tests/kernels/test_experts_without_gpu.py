"""Kernels of the router and of experts in tiles without a GPU: values in Triton's interpreter where it knows
the language, code by compiling.
"""

import importlib.util
from dataclasses import replace

import pytest
import torch

from intarsia import formats
from intarsia.formats.stored import Stored
from intarsia.kernels.experts import packed_launch, plan
from intarsia.kernels.experts.packed import PackedExperts
from intarsia.kernels.experts.resident import ResidentScales
from intarsia.kernels.router import Routing
from intarsia.kernels.rows import Rows
from tests.kernels.interpreted_routing import cases
from tests.kernels.interpreting import interpreted

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)

EXPERTS, INNER, WIDTH, TOP = 288, 2048, 4096, 8


@pytest.fixture(scope="module")
def faults():
    """What is wrong with every case, from one process."""
    return interpreted("tests.kernels.interpreted_routing")


@pytest.mark.parametrize("case", cases())
def test_a_kernel_does_what_it_says(faults, case):
    assert faults[case] == ""


def numbers(*shape: int, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


def in_tiles(rows: int, columns: int, parts: int, gated: bool) -> PackedExperts:
    """A stack without memory."""
    byte = torch.uint8
    return PackedExperts(
        "NVFP4",
        (EXPERTS, rows, columns),
        gated,
        numbers(EXPERTS, rows, columns // 2, dtype=byte),
        numbers(EXPERTS, rows, columns // 16, dtype=byte),
        {},
        numbers(EXPERTS, parts, dtype=torch.float32),
    )


def small_scales(stack: PackedExperts) -> PackedExperts:
    """The stack with compressed scales, without memory too."""
    experts, rows, columns = stack.shape
    tiles, steps, word = rows // 128, columns // 128, torch.int32
    scales = ResidentScales(
        (experts, rows, columns // 16),
        numbers(experts, tiles, steps, 32, 4, dtype=word),
        numbers(experts, tiles, 32, dtype=word),
        numbers(experts, tiles, steps, 4, dtype=torch.int64),
        numbers(1000, 2, dtype=word),
    )
    return replace(stack, scales=scales)


def routing(rows: int) -> Routing:
    return Routing(numbers(rows, TOP, dtype=torch.int32), numbers(rows, TOP, dtype=torch.float32))


@pytest.fixture
def compiled(monkeypatch):
    """Puts compilers in the places of kernels: names of a module -> what their launches would run on
    sm_90.
    """
    from tests.kernels.ahead_of_time import Compiled

    def replace(module, *names):
        stand_ins = [Compiled(getattr(module, name)) for name in names]
        for name, stand_in in zip(names, stand_ins, strict=True):
            monkeypatch.setattr(module, name, stand_in)
        return stand_ins

    return replace


@pytest.mark.parametrize(
    ("rows", "kernel", "product"),
    [
        (2, "few_rows", "HMMA"),
        (8, "few_rows", "HMMA"),
        (32, "few_rows", "HMMA"),
        (512, "few_rows", "HMMA"),
        (4096, "many_rows", "HGMMA"),
    ],
)
def test_experts_in_tiles_compile_to_tensor_core_code_without_spills(compiled, rows, kernel, product):
    from intarsia.kernels.experts import gluon_decode, gluon_prefill, triton_experts, triton_grouping
    from tests.kernels.ahead_of_time import usage

    before = ("arrange_rows", "group_some", "count_pairs", "place_pairs", "spread_row")
    sorting = compiled(triton_grouping, *before)
    products = compiled(gluon_decode, "few_rows") + compiled(gluon_prefill, "many_rows")
    (combine,) = compiled(triton_experts, "combine")
    stacks = in_tiles(2 * INNER, WIDTH, 2, True), in_tiles(WIDTH, INNER, 1, False)
    packed_launch.launch(
        numbers(rows, WIDTH), routing(rows), *stacks, 10.0, numbers(rows, WIDTH, dtype=torch.float32)
    )
    used = {"few_rows": products[0], "many_rows": products[1]}[kernel]
    assert [len(one.built) for one in products] == [2 * (one is used) for one in products]
    for built in used.built:
        report = usage(built)
        # Blocks of 24 pairs keep a few registers in memory, which is faster than a program less.
        assert report["stack"] <= (80 if rows == 512 else 0)
        assert report.get(product, 0) > 0
    many, unsorted = kernel == "many_rows", rows <= 8
    some = not many and not unsorted
    assert [len(one.built) for one in sorting] == [unsorted, some, many, many, many]
    assert len(combine.built) == 1


def test_up_to_64_pairs_go_without_lists(compiled, monkeypatch):
    from intarsia.kernels.experts import gluon_decode, triton_experts, triton_grouping
    from tests.kernels.ahead_of_time import usage

    arranging, sorting = compiled(triton_grouping, "arrange_rows", "group_some")
    (product,) = compiled(gluon_decode, "few_rows")
    compiled(triton_experts, "combine")
    form = plan.Few(pairs=8, quarters=4, depth=2, early_x=True, lists=False)
    monkeypatch.setattr(plan, "form_of", lambda *_: form)
    stacks = in_tiles(2 * INNER, WIDTH, 2, True), in_tiles(WIDTH, INNER, 1, False)
    for rows in (8, 9):
        packed_launch.launch(numbers(rows, WIDTH), routing(rows), *stacks, 10.0)
        assert [len(sorting.built), len(product.built)] == [rows - 8, 2 * (rows - 7)]
    assert len(arranging.built) == 1
    done = replace(routing(8), arranged=numbers(8, WIDTH))
    packed_launch.launch(numbers(8, WIDTH), done, *stacks, 10.0)
    assert len(arranging.built) == 1  # by who chose
    assert all(usage(built)["stack"] == 0 for built in product.built)


@pytest.mark.parametrize(("rows", "registers"), [(1, 104), (32, 128)])
def test_compressed_scales_compile_without_spills(compiled, rows, registers):
    from intarsia.kernels.experts import gluon_decode, triton_experts, triton_grouping
    from tests.kernels.ahead_of_time import usage

    compiled(triton_grouping, "arrange_rows", "group_some")
    compiled(triton_experts, "combine")
    (product,) = compiled(gluon_decode, "few_rows")
    stacks = in_tiles(2 * INNER, WIDTH, 2, True), in_tiles(WIDTH, INNER, 1, False)
    stacks = tuple(small_scales(stack) for stack in stacks)
    packed_launch.launch(numbers(rows, WIDTH), routing(rows), *stacks, 10.0)
    for built in product.built:
        report = usage(built)
        assert report["stack"] == 0
        assert report["registers"] <= registers  # four programs of a multiprocessor's 65536


@pytest.mark.parametrize(("name", "rows"), [("BF16", 1), ("BF16", 1024), ("F32", 1)])
def test_the_router_compiles_without_spills(compiled, name, rows):
    from intarsia.kernels.router import launch, triton_router
    from tests.kernels.ahead_of_time import usage

    kernels = compiled(triton_router, "score", "score_few", "choose")
    dtype = formats.get(name).layout((EXPERTS, WIDTH))["weight"].dtype
    weight = Stored(name, {"weight": numbers(EXPERTS, WIDTH, dtype=dtype)}, (EXPERTS, WIDTH))
    whole = [numbers(size, dtype=torch.int32) for size in (rows, rows, 2)]
    step = Rows(numbers(rows, dtype=torch.int64), *whole, numbers(1, 4, dtype=torch.int32), 1)
    bias = numbers(EXPERTS, dtype=torch.float32)
    got = launch.launch(numbers(rows, WIDTH), weight, bias, step, top=TOP, scaling=2.5)
    assert got.experts.shape == got.weights.shape == (rows, TOP)
    early = rows == 1 and name == "BF16"
    assert [len(kernel.built) for kernel in kernels] == [not early, early, True]
    assert all(usage(built)["stack"] == 0 for kernel in kernels for built in kernel.built)
