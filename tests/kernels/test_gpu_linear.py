"""Products from registers on a GPU: right to the rounding of their sums, and a row's bits its own."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from intarsia import formats
from intarsia.formats.stored import Stored
from intarsia.kernels import choice
from intarsia.kernels.experts import swiglu
from intarsia.kernels.linear import (
    gluon,
    linear,
    linear_stack,
    linear_swiglu,
    linears,
    linears_apart,
    plan,
)
from intarsia.kernels.linear.product import case_of
from tests.kernels.steps import randn

pytestmark = pytest.mark.gpu

COUNTS = [*range(1, 18), 31, 32, 33, 64, 65, 128, 129, 256]
MOST = 600  # rows: tiles of 256, the last one part full
# Of the sum of magnitudes: float32 sums of up to 16384 products in any order, as tensor cores add them.
SUMS = 4e-6
CASES = [
    ("MXFP8", (8200, 384)),  # no whole tile
    ("MXFP8", (8200, 512)),  # two ranges
    ("MXFP8", (272, 2048)),  # eight ranges
    ("FP8_PB_WO", (200, 384)),
    ("FP8_PB_WO", (8200, 512)),
    ("FP8_PB_WO", (272, 2048)),
    ("BF16", (72, 128)),  # one step
    ("BF16", (272, 2048)),
    ("BF16", (520, 4096)),
]


@pytest.fixture(autouse=True)
def needs_a_hopper():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    if reason := choice.no_gluon(torch.device("cuda", torch.cuda.current_device())):
        pytest.skip(reason)


def gpu(*shape: int, seed: int) -> Tensor:
    return randn(*shape, seed=seed).cuda()


def value(stored: Stored) -> Tensor:
    return formats.get(stored.format).decode(stored, torch.float32).double()


def bound(x: Tensor, weight: Tensor) -> Tensor:
    """What a correct product, summed in float32, may be off by."""
    return SUMS * (x.double().abs() @ weight.abs().T) + 1e-30


def poisoned(count: int, sizes: list[int], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [torch.full((count, size), torch.nan, dtype=dtype, device="cuda") for size in sizes]


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_products_are_right_and_a_rows_bits_its_own(name, shape):
    stored = formats.get(name).encode(gpu(*shape, seed=1))
    x = gpu(MOST, stored.columns, seed=2).bfloat16()
    (whole,) = poisoned(MOST, [stored.rows])
    gluon.launch([x], [stored], [whole])
    weight = value(stored)
    assert ((whole.double() - x.double() @ weight.T).abs() <= bound(x, weight)).all()
    wrong = []
    for count in COUNTS:
        for first in {0, MOST - count}:
            (out,) = poisoned(count, [stored.rows])
            gluon.launch([x[first : first + count]], [stored], [out])
            if not torch.equal(out, whole[first : first + count]):
                wrong.append((count, first))
    assert not wrong
    assert torch.equal(linear(x[:17], stored), whole[:17].bfloat16())


@pytest.mark.parametrize(("name", "columns"), [("MXFP8", 4096), ("FP8_PB_WO", 4096), ("BF16", 1024)])
def test_matrices_together_are_right_and_a_rows_bits_its_own(name, columns):
    sizes = [64, 512, 200]
    weights = [formats.get(name).encode(gpu(size, columns, seed=3 + i)) for i, size in enumerate(sizes)]
    x = gpu(MOST, columns, seed=7).bfloat16()
    whole = linears(x, weights, [torch.float32, None, torch.float32])
    assert [out.dtype for out in whole] == [torch.float32, torch.bfloat16, torch.float32]
    for out, stored in zip(whole, weights, strict=True):
        weight = value(stored)
        rounded = (x.double() @ weight.T).abs() * 2.0**-8 if out.dtype == torch.bfloat16 else 0
        assert ((out.double() - x.double() @ weight.T).abs() <= bound(x, weight) + rounded).all()
    for count in COUNTS:
        outs = poisoned(count, sizes)
        gluon.launch([x[:count]], weights, outs)
        assert all(torch.equal(out.to(w.dtype), w[:count]) for out, w in zip(outs, whole, strict=True)), count
        stack = linear_stack(x[:count], weights, out_dtype=torch.float32)
        assert torch.equal(stack, torch.cat(outs, -1))
    xs = [gpu(40, columns, seed=8 + i).bfloat16() for i in range(3)]
    for count in (8, 16, 40):
        apart = linears_apart([one[:count] for one in xs], weights, [torch.float32] * 3)
        for out, one, stored in zip(apart, xs, weights, strict=True):
            weight = value(stored)
            assert (
                (out.double() - one[:count].double() @ weight.T).abs() <= bound(one[:count], weight)
            ).all()


@pytest.mark.parametrize(
    ("name", "inner", "columns"), [("MXFP8", 256, 512), ("FP8_PB_WO", 512, 2048), ("BF16", 128, 256)]
)
def test_a_swiglu_is_that_of_the_product_for_every_count(name, inner, columns):
    stored = formats.get(name).encode(gpu(2 * inner, columns, seed=4))
    x = gpu(MOST, columns, seed=5).bfloat16() * 0.2
    (whole,) = poisoned(MOST, [inner])
    gluon.launch([x], [stored], [whole], limit=3.0)
    expected = swiglu((x.double() @ value(stored).T).float(), 3.0)
    torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-4)
    for count in COUNTS:
        (out,) = poisoned(count, [inner])
        gluon.launch([x[:count]], [stored], [out], limit=3.0)
        assert torch.equal(out, whole[:count]), count
    assert torch.equal(linear_swiglu(x, stored, 3.0), whole.bfloat16())


@pytest.mark.parametrize("name", ["MXFP8", "FP8_PB_WO", "BF16"])
def test_rows_that_are_not_used_become_zeros_and_change_nothing(name):
    stored = formats.get(name).encode(gpu(512, 2048, seed=6))
    x = gpu(272, 2048, seed=7).bfloat16()
    for count, real in ((1, 1), (8, 3), (16, 1), (16, 8), (16, 9), (48, 5), (48, 40), (144, 17), (272, 130)):
        (whole,) = poisoned(count, [512])
        gluon.launch([x[:count]], [stored], [whole])
        used = torch.tensor([real], dtype=torch.int32, device="cuda")
        rows = x[:count].clone()
        rows[real:] = torch.nan
        (out,) = poisoned(count, [512])
        gluon.launch([rows], [stored], [out], used=used)
        assert torch.equal(out[:real], whole[:real]), (count, real)
        assert (out[real:] == 0).all(), (count, real)
        out = linear_swiglu(rows, stored, 3.0, used=used)
        assert torch.equal(out[:real], linear_swiglu(x[:count], stored, 3.0)[:real]), (count, real)
        assert (out[real:] == 0).all(), (count, real)


@pytest.mark.parametrize(("name", "count"), [("MXFP8", 16), ("MXFP8", 300), ("FP8_PB_WO", 300)])
def test_codes_decoded_between_products_give_the_same_bits(name, count, monkeypatch):
    stored = formats.get(name).encode(gpu(392, 2048, seed=20))
    x = gpu(count, 2048, seed=21).bfloat16()
    whole, finely = poisoned(count, [392, 392])
    gluon.launch([x], [stored], [whole])
    shape = plan.many(*plan_of(stored), count, name)
    for fine in (False, True):
        one = replace(shape, fine=fine)
        monkeypatch.setattr(plan, "shape", lambda *_, one=one: one)
        finely.fill_(torch.nan)
        gluon.launch([x], [stored], [finely])
        assert torch.equal(whole, finely)


FEW = {
    1: [plan.Few(4, 64, 2, 1, 1), plan.Few(2, 32, 2, 2, 1)],
    2: [plan.Few(2, 32, 2, 1, 1), plan.Few(4, 64, 2, 2, 1)],
    8: [plan.Few(1, 16, 2, 1, 1), plan.Few(1, 16, 2, 2, 1)],
}


@pytest.mark.parametrize(("name", "shape"), [CASES[i] for i in (1, 2, 4, 5, 7)])
def test_forms_of_up_to_32_rows_have_the_same_bits(name, shape, monkeypatch):
    stored = formats.get(name).encode(gpu(*shape, seed=22))
    x = gpu(32, stored.columns, seed=23).bfloat16()
    whole = torch.cat([plain(stored, x[i : i + 8]) for i in range(0, 32, 8)])
    wrong = []
    for form in FEW[plan_of(stored)[0]]:
        monkeypatch.setattr(plan, "shape", lambda *_, form=form: form)
        for count in (1, 8, 9, 16, 17, 31, 32):
            if not torch.equal(plain(stored, x[:count]), whole[:count]):
                wrong.append((form, count))
    assert not wrong


def plain(stored: Stored, x: Tensor) -> Tensor:
    (out,) = poisoned(len(x), [stored.rows])
    gluon.launch([x], [stored], [out])
    return out


def plan_of(stored: Stored) -> tuple[int, int, int]:
    return plan.ranges_of(*stored.shape), *stored.shape


def test_every_code_and_exponent():
    """All finite E4M3 codes under every exponent that the kernels take; larger ones go to another kernel."""
    codes = torch.arange(256, dtype=torch.uint8)
    codes = torch.where((codes & 0x7F) == 0x7F, 0, codes).cuda()
    weight = codes.repeat(256, 1).view(torch.float8_e4m3fn)
    exponents = torch.arange(256, dtype=torch.uint8, device="cuda").clamp(max=230)
    for top in (134, 230):
        scale = exponents.clamp(max=top).unsqueeze(1).repeat(1, 8)
        stored = formats.get("MXFP8").stored({"weight": weight, "weight_scale": scale})
        columns = torch.arange(0, 256, 5, device="cuda")
        x = torch.zeros(len(columns), 256, dtype=torch.bfloat16, device="cuda")
        x[torch.arange(len(columns), device="cuda"), columns] = 1
        assert choice.choose(case_of(x, stored)) == ("gluon" if top == 134 else "triton")
        got = torch.cat(
            [linear(x[i : i + 13], stored, out_dtype=torch.float32) for i in range(0, len(x), 13)]
        )
        assert torch.equal(got, linear(x, stored, out_dtype=torch.float32))
        # Below 2^-126 the narrow form is not exact.
        torch.testing.assert_close(got.double(), value(stored)[:, columns].T, rtol=0, atol=2.0**-126)


@pytest.mark.parametrize("name", ["MXFP8", "FP8_PB_WO", "BF16"])
def test_cancelling_and_extreme_rows(name):
    stored = formats.get(name).encode(gpu(256, 4096, seed=8))
    weight = value(stored)
    x = gpu(40, 4096, seed=9)
    x[0], x[1], x[2], x[3] = 0.0, 1e30, 1e-30, x[4] * 10 ** (6 * gpu(4096, seed=10)).clamp(-8, 8)
    x[5, 1::2] = -x[5, ::2]
    rows = x.bfloat16()
    for count in (6, 16, 40):
        got = linear(rows[:count], stored, out_dtype=torch.float32).double()
        assert ((got - rows[:count].double() @ weight.T).abs() <= bound(rows[:count], weight)).all()


def test_a_replayed_graph_gives_what_the_launches_give():
    weights = [formats.get("MXFP8").encode(gpu(512, 2048, seed=11 + i)) for i in range(3)]
    gate_up = formats.get("FP8_PB_WO").encode(gpu(512, 2048, seed=14))
    used = torch.tensor([5], dtype=torch.int32, device="cuda")
    for count in (16, 64, 272):
        x = gpu(count, 2048, seed=15).bfloat16()

        def step(x=x):
            return [*linears(x, weights, used=used), linear_swiglu(x, gate_up, 3.0, used=used)]

        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            outs = step()
        for real in (5, count):
            used.fill_(real)
            x.copy_(gpu(count, 2048, seed=16 + real).bfloat16())
            for out in outs:
                out.fill_(torch.nan)
            graph.replay()
            assert all(torch.equal(out, again) for out, again in zip(outs, step(), strict=True))


def test_rows_in_unusual_memory_are_taken_as_they_are():
    stored = formats.get("MXFP8").encode(gpu(96, 512, seed=17))
    wide = gpu(40, 1032, seed=18).bfloat16()
    for count in (5, 40):
        for x in (wide[:count, 1:513], wide[:count, 8:520], wide[:count, 513:1025]):
            assert torch.equal(linear(x, stored), linear(x.contiguous(), stored))
        xs = [wide[:count, 8:520], gpu(count, 512, seed=19).bfloat16()]
        apart = linears_apart(xs, [stored, stored])
        for got, expected in zip(
            apart, linears_apart([x.contiguous() for x in xs], [stored] * 2), strict=True
        ):
            assert torch.equal(got, expected)
