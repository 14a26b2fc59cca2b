"""The Triton kernels on a GPU: right to the rounding of their output, and a row's bits its own."""

import pytest
import torch
from torch import Tensor

from intarsia import formats
from intarsia.formats.stored import Stored
from intarsia.kernels import choice
from intarsia.kernels.experts import launch as experts
from intarsia.kernels.experts import routed_experts, swiglu
from intarsia.kernels.linear import launch, linear
from intarsia.kernels.router import Routing
from tests.kernels.steps import randn

pytestmark = pytest.mark.gpu

COUNTS = [*range(1, 18), 64, 144, 1024]
FORMATS = ("MXFP8", "FP8_PB_WO", "BF16", "F32")
DTYPES = (torch.bfloat16, torch.float32)
# Of the sum of magnitudes: float32 sums of up to 4096 products in any order, as tensor cores add them.
SUMS = 4e-6


@pytest.fixture(autouse=True)
def needs_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(scope="module", autouse=True)
def poisoned_memory():
    """Memory that torch hands out again holds NaN, so that an output nobody writes shows."""
    if torch.cuda.is_available():
        torch.full((256 << 20,), torch.nan, device="cuda")
        torch.cuda.synchronize()


def gpu(*shape: int, seed: int) -> Tensor:
    return randn(*shape, seed=seed).cuda()


def value(stored: Stored) -> Tensor:
    return formats.get(stored.format).decode(stored, torch.float32).double()


def bound(x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """What a correct product may be off by: its sums, and the rounding of its output."""
    off = SUMS * (x.double().abs() @ weight.abs().T) + 1e-30
    return off + (x.double() @ weight.T).abs() * 2.0**-8 if dtype == torch.bfloat16 else off


def ragged(name: str) -> Stored:
    """40 x 96, which fill no tile; the block format cut in the middle of a block."""
    number_format = formats.get(name)
    left = 70 if name == "FP8_PB_WO" else 64
    whole = number_format.encode(gpu(110, 224, seed=1))
    return number_format.cut(whole, range(70, 110), range(left, left + 96))


def in_ranges(name: str) -> Stored:
    """256 x 4096: K is cut into eight ranges."""
    return formats.get(name).encode(gpu(256, 4096, seed=2))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("make", [ragged, in_ranges])
@pytest.mark.parametrize("name", FORMATS)
def test_products_are_right_and_a_rows_bits_its_own(name, make, dtype):
    stored = make(name)
    x = gpu(1024, stored.columns, seed=3).to(dtype)
    whole = launch.launch(x, stored, torch.float32)
    weight = value(stored)
    assert ((whole.double() - x.double() @ weight.T).abs() <= bound(x, weight, torch.float32)).all()
    wrong = []
    for count in COUNTS:
        for first in {0, 1024 - count, 301 % (1025 - count)}:
            out = torch.full((count, stored.rows), torch.nan, device="cuda")
            launch.launch(x[first : first + count], stored, torch.float32, out)
            if not torch.equal(out, whole[first : first + count]):
                wrong.append((count, first))
    assert not wrong
    order = torch.randperm(1024, generator=torch.Generator().manual_seed(4)).cuda()
    assert torch.equal(launch.launch(x[order], stored, torch.float32), whole[order])


@pytest.mark.parametrize("name", FORMATS)
def test_bfloat16_outputs_are_rounded_once(name):
    for stored in (ragged(name), in_ranges(name)):
        x = gpu(17, stored.columns, seed=5).bfloat16()
        exact = launch.launch(x, stored, torch.float32)
        assert torch.equal(launch.launch(x, stored), exact.bfloat16())


@pytest.mark.parametrize("name", FORMATS)
def test_dispatch_takes_triton_unless_the_reference_is_forced(name):
    stored = ragged(name)
    x = gpu(16, stored.columns, seed=6)
    assert torch.equal(linear(x, stored), launch.launch(x, stored))
    with choice.forced("reference"):
        torch.testing.assert_close(linear(x, stored), launch.launch(x, stored), rtol=1e-2, atol=0.1)
    case = choice.Case("linear", (name,), x.dtype, x.device, stored.shape)
    assert [row.candidate for row in choice.explain(case) if row.chosen] == ["triton"]


def test_every_code_and_exponent_of_mxfp8():
    """All finite E4M3 codes under exponents from the smallest to the largest that gives finite sums."""
    codes = torch.arange(256, dtype=torch.uint8)
    codes = torch.where((codes & 0x7F) == 0x7F, 0, codes).cuda()
    exponents = [0, 1, 2, 20, 60, 100, 127, 134, 135, 150, 200, 230]
    weight = codes.repeat(len(exponents), 1).view(torch.float8_e4m3fn)
    scale = torch.tensor(exponents, dtype=torch.uint8, device="cuda").unsqueeze(1).repeat(1, 8)
    stored = formats.get("MXFP8").stored({"weight": weight, "weight_scale": scale})
    for dtype in DTYPES:
        for column in range(0, 256, 7):
            x = torch.zeros(1, 256, dtype=dtype, device="cuda")
            x[0, column] = 1
            got = launch.launch(x, stored, torch.float32)[0].double()
            # Below 2^-126 the narrow form is not exact.
            torch.testing.assert_close(got, value(stored)[:, column], rtol=0, atol=2.0**-126)


@pytest.mark.parametrize("name", FORMATS)
def test_cancelling_and_extreme_rows(name):
    stored = in_ranges(name)
    weight = value(stored)
    x = gpu(17, stored.columns, seed=7)
    x[0], x[1], x[2], x[3] = 0.0, 1e30, 1e-30, x[4] * 10 ** (6 * gpu(stored.columns, seed=8)).clamp(-8, 8)
    x[5, 1::2] = -x[5, ::2]
    for dtype in DTYPES:
        rows = x.to(dtype)
        got = launch.launch(rows, stored, torch.float32).double()
        assert ((got - rows.double() @ weight.T).abs() <= bound(rows, weight, torch.float32)).all()


EXPERTS, INNER, WIDTH, TOP, LIMIT = 24, 256, 512, 4, 10.0


def experts_of(name: str) -> tuple[Stored, Stored]:
    number_format = formats.get(name)
    gate_up = number_format.encode(0.2 * gpu(EXPERTS, 2 * INNER, WIDTH, seed=11))
    down = number_format.encode(0.1 * gpu(EXPERTS, WIDTH, INNER, seed=12))
    if "weight_scale_2" in gate_up:
        scale = gate_up["weight_scale_2"]
        tensors = dict(gate_up.tensors) | {"weight_scale_2": torch.stack([scale, 1.7 * scale], 1)}
        gate_up = Stored(name, tensors, gate_up.shape)
    return gate_up, down


def routing(kind: str, rows: int) -> Routing:
    """Every skew: chosen at random, the same experts for all rows, one expert four times, few of many
    real.
    """
    generator = torch.Generator().manual_seed(13)
    if kind == "random" or kind == "mostly_padding":
        chosen = torch.stack([torch.randperm(EXPERTS, generator=generator)[:TOP] for _ in range(rows)])
    elif kind == "all_to_the_same":
        chosen = torch.tensor([EXPERTS - 1, 0, 5, 6]).repeat(rows, 1)
    else:
        chosen = torch.full((rows, TOP), 7)
    if kind == "mostly_padding":
        chosen[1:] = -1
    weights = torch.rand(rows, TOP, generator=generator)
    return Routing(chosen.int().cuda(), weights.cuda())


def exact_experts(x: Tensor, chosen: Routing, gate_up: Stored, down: Stored) -> Tensor:
    first, second = value(gate_up), value(down)
    out = torch.zeros(x.shape, dtype=torch.float64, device="cuda")
    for expert in range(EXPERTS):
        where, slot = (chosen.experts == expert).nonzero(as_tuple=True)
        inner = swiglu((x[where].double() @ first[expert].T).float(), LIMIT).to(x.dtype).double()
        y = chosen.weights[where, slot, None].double() * (inner @ second[expert].T)
        out.index_add_(0, where, y)
    return out


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["NVFP4", "W4A16_NVFP4", "MXFP8", "BF16", "F32"])
def test_experts_are_right_for_every_skew(name, dtype):
    gate_up, down = experts_of(name)
    for kind in ("random", "all_to_the_same", "one_expert", "mostly_padding"):
        for rows in (1, 2, 7, 16, 17, 64, 144):
            x, chosen = gpu(rows, WIDTH, seed=14).to(dtype), routing(kind, rows)
            x[(chosen.experts < 0).all(1)] = torch.nan
            got = experts.launch(x, chosen, gate_up, down, LIMIT)
            expected = exact_experts(x, chosen, gate_up, down)
            limit = 1e-5 if dtype == torch.float32 else 5e-3
            assert (got.double() - expected).abs().max() <= limit * expected.abs().max(), (kind, rows)
            if kind == "mostly_padding":
                assert (got[1:] == 0).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["NVFP4", "MXFP8", "BF16"])
def test_bits_of_a_routed_row_do_not_depend_on_other_rows(name, dtype):
    """With BF16 weights 1024 rows give blocks of 64 pairs, 144 rows of 32, and up to 17 of 8."""
    gate_up, down = experts_of(name)
    x, chosen = gpu(1024, WIDTH, seed=15).to(dtype), routing("random", 1024)
    whole = experts.launch(x, chosen, gate_up, down, LIMIT)
    wrong = []
    for count in COUNTS[:-1]:
        part = Routing(chosen.experts[:count], chosen.weights[:count])
        if not torch.equal(experts.launch(x[:count], part, gate_up, down, LIMIT), whole[:count]):
            wrong.append(count)
    assert not wrong
    again = routed_experts(x, chosen, gate_up, down, LIMIT)
    assert torch.equal(again, whole)


def test_a_captured_graph_gives_the_eager_bits():
    gate_up, down = experts_of("NVFP4")
    head = in_ranges("MXFP8")
    x, chosen = gpu(16, WIDTH, seed=16).bfloat16(), routing("random", 16)
    wide = gpu(16, head.columns, seed=17).bfloat16()

    def work() -> tuple[Tensor, Tensor]:
        return experts.launch(x, chosen, gate_up, down, LIMIT), launch.launch(wide, head)

    expected = work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = work()
    for tensor in captured:
        tensor.fill_(torch.nan)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, expected, strict=True))
