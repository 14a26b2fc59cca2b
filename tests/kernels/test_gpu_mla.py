"""Latent attention on a GPU: right to the rounding of its output, a row's bits its own."""

import pytest
import torch
from torch import Tensor

from intarsia import formats
from intarsia.kernels import choice, device
from intarsia.kernels.mla import (
    attend,
    attend_values,
    encode_latents,
    entry,
    expand_values,
    products,
    reference,
)
from intarsia.kernels.mla import launch as mla
from intarsia.kernels.rows import Rows
from tests.kernels.latent_cases import (
    COUNTS,
    HEADS,
    KEY,
    LATENT,
    PAGE,
    SLOTS,
    VALUE,
    cache_of,
    caches,
    entering,
    exact,
    gpu,
    selection,
    step,
)

pytestmark = pytest.mark.gpu

KERNELS = [("gluon", torch.bfloat16), ("triton", torch.bfloat16), ("triton", torch.float32)]


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


MIXED = ((0, 99, 1, True), (1, 2049, 4, True), (2, 0, 1, True), (3, 5000, 3, True))
PROMPTS = ((0, 98, 5, False), (1, 2047, 6, False), (2, 0, 4, False), (3, 5990, 3, False))


@pytest.mark.parametrize(("name", "dtype"), KERNELS, ids=str)
@pytest.mark.parametrize(
    "parts", [MIXED, PROMPTS, MIXED[:2] + PROMPTS[2:]], ids=["recurrent", "prompt", "both"]
)
def test_attention_is_softmax_attention(parts, name, dtype):
    rows = step(*parts)
    selected, cache = selection(rows), cache_of(dtype)
    q = (0.3 * gpu(rows.tokens.shape[0], HEADS, LATENT, seed=4)).to(dtype)
    got = mla.attend(q, cache, selected, rows, KEY**-0.5, name=name)
    expected = exact(q, cache, selected, rows, KEY**-0.5)
    limit = 1e-5 if dtype == torch.float32 else 1e-2
    assert (got.double() - expected).abs().max() <= limit * expected.abs().max()
    assert (got[int(rows.starts[-1]) :] == 0).all()


@pytest.mark.parametrize(
    ("heads", "latent", "slots", "name"),
    [(4, 64, 67, "triton"), (96, 256, 515, "triton"), (16, 512, 67, "gluon"), (96, 512, 3, "gluon")],
)
@pytest.mark.parametrize("form", [True, False])
def test_other_geometries(heads, latent, slots, name, form):
    rows = step((0, 70, 3, form), (1, 1, 2, form), (2, 700, 2, form))
    selected, cache = selection(rows, slots), cache_of(torch.bfloat16, latent)
    q = gpu(16, heads, latent, seed=4).bfloat16()
    got = mla.attend(q, cache, selected, rows, latent**-0.5, name=name)
    expected = exact(q, cache, selected, rows, latent**-0.5)
    assert (got.double() - expected).abs().max() <= 1e-2 * expected.abs().max()


@pytest.mark.parametrize("form", [True, False])
def test_latents_in_fp8(form):
    rows = step((0, 3000, 5, form), (1, 20, 2, form))
    selected, plain = selection(rows), cache_of(torch.float32).nan_to_num(0.0)
    codes, scales = encode_latents(plain.flatten(0, 1) * torch.rand(len(plain) * PAGE, 1, device="cuda") ** 8)
    codes, scales = codes.view(plain.shape), scales.view(plain.shape[:2])
    q = (0.3 * gpu(16, HEADS, LATENT, seed=4)).bfloat16()
    got = mla.attend(q, codes, selected, rows, KEY**-0.5, scales)
    value = codes.double() * scales.double().unsqueeze(-1)
    expected = exact(q, value, selected, rows, KEY**-0.5)
    assert (got.double() - expected).abs().max() <= 1e-2 * expected.abs().max()
    assert torch.equal(got, mla.attend(q, value.bfloat16(), selected, rows, KEY**-0.5)) or form


@pytest.mark.parametrize("name", ["gluon", "triton"])
@pytest.mark.parametrize("form", [True, False])
def test_extreme_scores_positions_in_any_order_and_values_that_are_not_numbers(form, name):
    rows = step((0, 2000, 16, form))
    cache, q = cache_of(torch.bfloat16), gpu(16, HEADS, LATENT, seed=5).bfloat16()
    selected = torch.full((16, SLOTS), -1, dtype=torch.int32, device="cuda")
    chosen = torch.randperm(2000, device="cuda").int()
    selected[0, 7::3] = chosen[: len(selected[0, 7::3])]
    selected[1, :500] = chosen[:500]
    q[1] = 1e3 * q[1]
    selected[2, 1111] = 5
    q[2] = 1e30
    selected[4, :5] = chosen[:5]
    q[4, 3, 7] = torch.nan
    bad = rows.page_table[0, 0].long()
    cache[bad, 9] = torch.nan
    selected[selected == 9] = -1
    selected[5, 2050] = 9
    got = mla.attend(q, cache, selected, rows, KEY**-0.5, name=name)
    expected = exact(q, cache, selected, rows, KEY**-0.5)
    for row in (0, 1):
        assert (got[row].double() - expected[row]).abs().max() <= 1e-2 * expected[row].abs().max()
    assert torch.equal(got[2], cache[bad, 5].expand(HEADS, -1))
    assert (got[3] == 0).all()
    assert got[4].isnan().any(1).tolist() == [head == 3 for head in range(HEADS)]
    assert got[5].isnan().all()


@pytest.mark.parametrize(("name", "dtype"), KERNELS, ids=str)
@pytest.mark.parametrize("form", [True, False])
def test_bits_of_an_attended_row_are_its_own(form, name, dtype):
    parts = [(0, 2030, 20, form), (1, 90, 12, form), (2, 4000, 20, form), (3, 0, 12, form)]
    rows = step(*parts)
    selected, cache = selection(rows), cache_of(dtype)
    q = (0.3 * gpu(64, HEADS, LATENT, seed=6)).to(dtype)
    whole = mla.attend(q, cache, selected, rows, KEY**-0.5, name=name)
    wrong = []
    for count in COUNTS[:: 1 if dtype == torch.bfloat16 else 5]:
        for stream, at, _, _ in parts[:3]:
            first = 0 if stream == 0 else 20 if stream == 1 else 32
            taken = min(count, 12)
            own = step((stream, at, taken, form))
            rest = (own.starts, own.page_table, own.recurrent_segments)
            own = Rows(own.tokens[:count], own.positions[:count], own.streams[:count], *rest)
            part = slice(first, first + len(own.positions))
            got = mla.attend(q[part], cache, selected[part], own, KEY**-0.5, name=name)
            if not torch.equal(got[:taken], whole[first : first + taken]):
                wrong.append((count, stream))
    assert not wrong


@pytest.mark.parametrize(("heads", "slots"), [(32, SLOTS), (96, SLOTS), (16, 1100), (64, 67), (64, 3)])
def test_few_rows_have_the_bits_of_many(heads, slots, monkeypatch):
    """By scores and sums in two kernels, whether the selection may be read early or not."""
    rows = step((0, 99, 1, True), (1, 2049, 2, True), (2, 0, 1, True), (3, 5000, 3, True))
    selected, cache = selection(rows, slots), cache_of(torch.bfloat16)
    q = (0.3 * gpu(rows.tokens.shape[0], heads, LATENT, seed=4)).bfloat16()
    monkeypatch.setattr(mla, "_FEW_ROWS", 0)
    many = mla.attend(q, cache, selected, rows, KEY**-0.5, name="gluon")
    monkeypatch.setattr(mla, "_FEW_ROWS", 64)
    for early in (True, False):
        assert torch.equal(mla.attend(q, cache, selected, rows, KEY**-0.5, name="gluon", early=early), many)


@pytest.mark.parametrize("heads", [32, 64])
@pytest.mark.parametrize("count", [1, 2, 4, 5, 16])
def test_attended_values_have_the_bits_of_two_steps(count, heads):
    parts = (0, 2049, min(count, 2), True), (1, 99, max(0, count - 2) // 2, True)
    rows = step(*parts)
    rows = Rows(
        rows.tokens[:count],
        rows.positions[:count],
        rows.streams[:count],
        rows.starts,
        rows.page_table,
        rows.recurrent_segments,
    )
    selected, cache = selection(rows), cache_of(torch.bfloat16)
    q = (0.3 * gpu(count, heads, LATENT, seed=4)).bfloat16()
    kv_b = (gpu(heads * (KEY + VALUE), LATENT, seed=1) * LATENT**-0.5).bfloat16()
    case = q, cache, selected, rows, KEY**-0.5
    expected = expand_values(attend(*case), kv_b, KEY, VALUE)
    assert (expected[int(rows.starts[-1]) :] == 0).all()
    assert torch.equal(attend_values(*case, kv_b, KEY, VALUE), expected)


@pytest.mark.parametrize("name", ["gluon", "triton"])
def test_rows_in_parts_have_the_same_bits(name, monkeypatch):
    """A recurrent segment of many rows, as the MTP layer's captured steps have it, and a prompt behind it."""
    rows = step((0, 2030, 40, True), (1, 90, 9, True), (2, 4000, 12, False))
    selected, cache = selection(rows), cache_of(torch.bfloat16)
    q = (0.3 * gpu(64, HEADS, LATENT, seed=6)).bfloat16()
    whole = mla.attend(q, cache, selected, rows, KEY**-0.5, name=name)
    expected = exact(q, cache, selected, rows, KEY**-0.5)
    assert (whole.double() - expected).abs().max() <= 1e-2 * expected.abs().max()
    monkeypatch.setattr(mla, "_ROWS_AT_ONCE", 7)
    monkeypatch.setattr(device, "_OVERLAP_UP_TO", 0)
    assert torch.equal(mla.attend(q, cache, selected, rows, KEY**-0.5, name=name), whole)


@pytest.mark.parametrize(
    ("heads", "key", "value", "latent", "stored", "dtype"),
    [
        (64, 256, 256, 512, "BF16", torch.bfloat16),
        (64, 256, 256, 512, "MXFP8", torch.bfloat16),
        (4, 64, 64, 64, "BF16", torch.bfloat16),
        (4, 64, 64, 64, "MXFP8", torch.float32),
        (3, 16, 32, 128, "BF16", torch.float32),
    ],
)
def test_products_with_key_and_value_rows(heads, key, value, latent, stored, dtype):
    kv_b = formats.get(stored).encode(gpu(heads * (key + value), latent, seed=1) * latent**-0.5)
    split = formats.get(stored).decode(kv_b, torch.float32).double().view(heads, key + value, latent)
    q, latents = gpu(1024, heads, key, seed=2).to(dtype), gpu(1024, heads, latent, seed=3).to(dtype)
    absorbed, expanded = products.absorb(q, kv_b, key, value), products.expand(latents, kv_b, key, value)
    limit = 1e-5 if dtype == torch.float32 else 8e-3
    expected = torch.einsum("rhk,hkl->rhl", q.double(), split[:, :key])
    assert (absorbed.double() - expected).abs().max() <= limit * expected.abs().max()
    expected = torch.einsum("rhl,hvl->rhv", latents.double(), split[:, key:]).flatten(1)
    assert (expanded.double() - expected).abs().max() <= limit * expected.abs().max()
    wrong = []
    for count in [*COUNTS, 144]:
        if not torch.equal(products.absorb(q[:count], kv_b, key, value), absorbed[:count]):
            wrong.append(("absorb", count))
        if not torch.equal(products.expand(latents[:count], kv_b, key, value), expanded[:count]):
            wrong.append(("expand", count))
    assert not wrong


def test_a_captured_graph_gives_the_eager_bits_for_other_rows():
    """Captured with one set of rows, replayed with another that leaves segments empty."""
    kv_b = (gpu(HEADS * (KEY + VALUE), LATENT, seed=1) * LATENT**-0.5).bfloat16()
    q = gpu(16, HEADS, KEY, seed=2).bfloat16()
    first = step(*[(stream, 40 + stream, 4, True) for stream in range(4)])
    other = step((3, 2500, 2, True), (0, 7, 1, True), (1, 600, 4, True), (2, 0, 0, True))
    state, cache = caches(torch.bfloat16, False), cache_of(torch.bfloat16)
    chosen, raw = selection(first), entering(first, state, torch.bfloat16)

    def work() -> tuple[Tensor, Tensor]:
        entered = entry.launch(*raw, first)
        absorbed = products.absorb(q, kv_b, KEY, VALUE)
        attended = mla.attend(absorbed, cache, chosen, first, KEY**-0.5, name="gluon")
        return entered, products.expand(attended, kv_b, KEY, VALUE)

    work()
    stream = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        captured = work()
    for name in ("tokens", "positions", "streams", "starts"):
        getattr(first, name).copy_(getattr(other, name))
    chosen.copy_(selection(other))
    state[3].fill_(7.0)
    expected = work()
    pooled = state[3].clone()
    state[3].fill_(7.0)
    for tensor in captured:
        tensor.fill_(torch.nan)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, expected, strict=True))
    assert torch.equal(state[3], pooled)
    assert (captured[1][7:] == 0).all()


def test_the_table_takes_the_kernel_for_hopper_and_the_reference_agrees():
    rows = step(*MIXED)
    selected, cache = selection(rows), cache_of(torch.bfloat16).nan_to_num(0.0)
    q = (0.3 * gpu(16, HEADS, LATENT, seed=4)).bfloat16()
    expected = reference.attend(q, cache, selected, rows, KEY**-0.5)
    torch.testing.assert_close(attend(q, cache, selected, rows, KEY**-0.5), expected, rtol=1e-2, atol=1e-2)
    case = choice.Case("attend", ("BF16",), q.dtype, q.device, (LATENT,))
    assert [row.candidate for row in choice.explain(case) if row.chosen] == ["gluon"]
