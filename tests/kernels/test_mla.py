"""Latent attention in absorbed form against plain softmax attention in double precision."""

import math

import pytest
import torch

from intarsia import formats
from intarsia.kernels.mla import absorb_keys, attend, encode_latents, expand_values, write_latents
from intarsia.kernels.paging import write_rows
from tests.kernels.steps import padded, page_table, randn, step

HEADS, KEY, VALUE, LATENT, PAGE, LENGTH = 3, 12, 20, 24, 8, 50
SCALE = KEY**-0.5
KV_B = randn(HEADS * (KEY + VALUE), LATENT, seed=1) / LATENT**0.5


def naive(q, latents, kv_b, chosen):
    """Attention of one row's heads [H, K] over the latents of the positions in `chosen`."""
    out = []
    for head in range(HEADS):
        rows = kv_b.double()[head * (KEY + VALUE) : (head + 1) * (KEY + VALUE)]
        keys = latents[chosen].double() @ rows[:KEY].T
        values = latents[chosen].double() @ rows[KEY:].T
        weights = torch.softmax(keys @ q[head].double() * SCALE, 0)
        out.append(weights @ values)
    return torch.cat(out)


def selection(seed=0, width=20):
    """For each row up to `width` distinct positions it can see, in no order, with -1 between them."""
    generator = torch.Generator().manual_seed(seed)
    selected = torch.full((LENGTH, width), -1, dtype=torch.int32)
    for row in range(LENGTH):
        count = int(torch.randint(1, min(row + 1, width) + 1, (), generator=generator))
        chosen = torch.randperm(row + 1, generator=generator)[:count]
        selected[row, torch.randperm(width, generator=generator)[:count]] = chosen.int()
    return selected


def cache_of(latents, rows, pages):
    """Latents in pages; every place that holds none is NaN, but the null page is zero."""
    cache = torch.full((pages + 1, PAGE, LATENT), torch.nan)
    cache[-1] = 0
    write_rows(cache, padded(latents), rows)
    return cache


@pytest.mark.parametrize("order", [range(8), (5, 0, 7, 2, 1, 6, 3, 4)])
def test_absorbed_attention_is_softmax_attention(order):
    latents, q = randn(LENGTH, LATENT), randn(LENGTH, HEADS, KEY, seed=3)
    rows = step((0, 0, LENGTH), table=page_table(1, 8, order))
    selected = selection()
    attended = attend(
        absorb_keys(padded(q), KV_B, KEY, VALUE),
        cache_of(latents, rows, 8),
        torch.cat([selected, torch.full((14, 20), -1, dtype=torch.int32)]),
        rows,
        SCALE,
    )
    got = expand_values(attended, KV_B, KEY, VALUE)
    for row in range(LENGTH):
        chosen = selected[row][selected[row] >= 0].tolist()
        expected = naive(q[row], latents, KV_B, chosen)
        torch.testing.assert_close(got[row].double(), expected, rtol=1e-4, atol=1e-5)


def test_order_of_a_selection_does_not_matter():
    latents, q = randn(LENGTH, LATENT), randn(LENGTH, HEADS, LATENT, seed=3)
    rows = step((0, 0, LENGTH))
    cache, selected = cache_of(latents, rows, 8), torch.cat([selection(), selection()[:14]])
    one = attend(padded(q), cache, selected, rows, SCALE)[:LENGTH]
    other = attend(padded(q), cache, selected.flip(1), rows, SCALE)[:LENGTH]
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_streams_see_their_own_latents_only():
    table = page_table(2, 8)
    latents = [randn(20, LATENT, seed=s) for s in (5, 6)]
    rows = step((0, 0, 20), (1, 0, 20), table=table)
    cache = cache_of(torch.cat(latents), rows, 16)
    q = randn(48, HEADS, LATENT, seed=7)
    selected = torch.arange(20, dtype=torch.int32).repeat(48, 1)
    selected[selected > torch.cat([torch.arange(20), torch.arange(20), torch.zeros(8)]).unsqueeze(1)] = -1
    got = attend(q, cache, selected, rows, SCALE)
    for stream, own in enumerate(latents):
        alone = step((0, 0, 20))
        part = torch.cat([q[20 * stream : 20 * stream + 20], q[:12]])
        chosen = torch.cat([selected[:20], torch.full((12, 20), -1, dtype=torch.int32)])
        expected = attend(part, cache_of(own, alone, 8), chosen, alone, SCALE)[:20]
        assert torch.equal(got[20 * stream : 20 * stream + 20], expected)


def test_rows_that_select_nothing_and_padding_rows_get_zeros():
    rows = step((0, 0, 3))
    cache = cache_of(randn(3, LATENT), rows, 8)
    q = padded(randn(3, HEADS, LATENT, seed=1), fill=1.0)
    selected = torch.full((16, 20), -1, dtype=torch.int32)
    selected[0, 4] = 0
    # A selection is made from positions alone, so it names a position for padding rows too.
    selected[3:, 0] = 0
    got = attend(q, cache, selected, rows, SCALE)
    torch.testing.assert_close(got[0], cache.view(-1, LATENT)[0].expand(HEADS, -1))
    assert (got[1:] == 0).all()


def test_one_selected_position_is_returned_whole():
    """Softmax over one entry is 1, however large its score."""
    rows = step((0, 0, LENGTH))
    latents = 1e3 * randn(LENGTH, LATENT)
    selected = torch.full((64, 20), -1, dtype=torch.int32)
    selected[:LENGTH, 11] = torch.arange(LENGTH)
    got = attend(1e3 * randn(64, HEADS, LATENT), cache_of(latents, rows, 8), selected, rows, SCALE)[:LENGTH]
    torch.testing.assert_close(got, latents.unsqueeze(1).expand(-1, HEADS, -1))


@pytest.mark.parametrize("name", ["BF16", "MXFP8", "FP8_PB_WO"])
def test_stored_key_and_value_rows(name):
    weight = randn(HEADS * (32 + 32), 64, seed=1)
    stored = formats.get(name).encode(weight)
    value = formats.get(name).decode(stored, torch.float32).view(HEADS, 64, 64).double()
    q, latents = randn(16, HEADS, 32), randn(16, HEADS, 64, seed=2)
    keys = torch.einsum("rhk,hkl->rhl", q.double(), value[:, :32])
    torch.testing.assert_close(absorb_keys(q, stored, 32, 32).double(), keys, rtol=1e-4, atol=1e-4)
    values = torch.einsum("rhl,hvl->rhv", latents.double(), value[:, 32:]).flatten(1)
    torch.testing.assert_close(expand_values(latents, stored, 32, 32).double(), values, rtol=1e-4, atol=1e-4)


def test_a_value_that_is_not_a_number_is_not_hidden():
    rows = step((0, 0, 3))
    cache = cache_of(randn(3, LATENT), rows, 8)
    cache.view(-1, LATENT)[1, 0] = torch.nan
    q = torch.ones(16, HEADS, LATENT)
    q[2, 0, 0] = torch.nan
    selected = torch.full((16, 20), -1, dtype=torch.int32)
    selected[0, 0], selected[1, 0], selected[2, :2] = 0, 1, torch.tensor([0, 2])
    got = attend(q, cache, selected, rows, SCALE)
    assert got.isnan().flatten(1).any(1).tolist() == [False, True, True] + [False] * 13


@pytest.mark.parametrize("row", [0, 15, 16, 33, 49])
@pytest.mark.parametrize("before", [0, 3, 17])
def test_bits_of_a_row_do_not_depend_on_the_rows_around_it(row, before):
    latents, q, selected = randn(LENGTH, LATENT), randn(LENGTH, HEADS, LATENT, seed=3), selection()
    rows = step((0, 0, LENGTH))
    cache = cache_of(latents, rows, 8)
    whole = attend(padded(q), cache, torch.cat([selected, selected[:14]]), rows, SCALE)
    first = max(row - before, 0)
    part = slice(first, row + 1)
    chosen = padded(selected[part].float(), -1.0).int()
    got = attend(padded(q[part]), cache, chosen, step((0, first, row + 1 - first)), SCALE)
    assert torch.equal(got[row - first], whole[row])


def test_fp8_latents_take_the_smallest_power_of_two_that_holds_the_row():
    tops = [448, 448.001, 224, 224.5, 1, 1e-30, 3e38, 2.0**-120, 0]
    latents = torch.tensor(tops).unsqueeze(1) * torch.linspace(-1, 1, LATENT)
    codes, scales = encode_latents(latents)
    for row, scale in zip(latents, scales.tolist(), strict=True):
        top = float(row.abs().max())
        assert scale == 2.0 ** round(math.log2(scale))
        assert top <= 448 * scale
        assert top > 224 * scale or (top == 0 and scale == 1)
    error = (codes.double() * scales.double()[:, None] - latents.double()).abs()
    # Half a unit in the last of three fraction bits, or half the smallest code.
    assert (error <= torch.maximum(latents.double().abs() / 16, scales.double()[:, None] * 2**-10)).all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_visible_in_fp8(bad):
    latents = randn(2, LATENT)
    latents[1, 5] = bad
    codes, scales = encode_latents(latents)
    decoded = codes.float() * scales[:, None]
    assert decoded[0].isfinite().all()
    assert decoded[1].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_over_fp8_latents_is_that_over_what_they_decode_to(dtype):
    latents, q = randn(LENGTH, LATENT).to(dtype), randn(LENGTH, HEADS, LATENT, seed=3).to(dtype)
    rows = step((0, 0, LENGTH), table=page_table(1, 8, (5, 0, 7, 2, 1, 6, 3, 4)))
    codes = torch.zeros(9, PAGE, LATENT, dtype=torch.float8_e4m3fn)
    scales = torch.full((9, PAGE), torch.nan)
    write_latents(codes, scales, padded(latents), rows)
    assert not codes[-1].float().any()
    own, powers = encode_latents(latents)
    decoded = cache_of(own.float() * powers[:, None], rows, 8)
    selected = torch.cat([selection(), torch.full((14, 20), -1, dtype=torch.int32)])
    got = attend(padded(q), codes, selected, rows, SCALE, scales)
    assert torch.equal(got, attend(padded(q), decoded, selected, rows, SCALE))
