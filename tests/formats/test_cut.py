"""Cuts, cuts of cuts, experts and joins: a part of the whole is the same stored bytes, and the same
values.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia import formats
from intarsia.formats import CutError, LayoutError, Stored

NAMES = formats.names()
STEP = {"NVFP4": 16, "W4A16_NVFP4": 16, "MXFP8": 32, "MXFP4": 32}


@st.composite
def parts(draw: st.DrawFn, size: int, step: int) -> range:
    """A range that is not empty, between multiples of the step."""
    edges = draw(st.sets(st.integers(0, size // step), min_size=2, max_size=2))
    return range(min(edges) * step, max(edges) * step)


def weight(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator) * torch.rand(rows, 1, generator=generator)


def same(left: Stored, right: Stored) -> None:
    assert (left.format, left.shape, left.origin, list(left)) == (
        right.format,
        right.shape,
        right.origin,
        list(right),
    )
    for suffix in left:
        pair = [each[suffix].contiguous().view(-1).view(torch.uint8) for each in (left, right)]
        assert torch.equal(*pair), suffix


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_a_cut_holds_the_values_of_its_part(name: str, data: st.DataObject) -> None:
    number = formats.get(name)
    rows_all, columns_all = data.draw(st.integers(1, 300)), 32 * data.draw(st.integers(1, 12))
    whole = number.encode(weight(rows_all, columns_all))
    step = STEP.get(name, 1)
    rows, columns = data.draw(parts(rows_all, 1)), data.draw(parts(columns_all, step))
    cut = number.cut(whole, rows, columns)
    values = number.decode(whole)[rows.start : rows.stop, columns.start : columns.stop]
    assert cut.shape == (len(rows), len(columns))
    assert number.check(cut) == []
    assert torch.equal(number.decode(cut), values)
    inner_rows, inner_columns = data.draw(parts(len(rows), 1)), data.draw(parts(len(columns), step))
    twice = number.cut(cut, inner_rows, inner_columns)
    once = number.cut(
        whole,
        range(rows.start + inner_rows.start, rows.start + inner_rows.stop),
        range(columns.start + inner_columns.start, columns.start + inner_columns.stop),
    )
    same(twice, once)
    same(number.cut(cut.clone(), inner_rows, inner_columns), once)
    expected = values[inner_rows.start : inner_rows.stop, inner_columns.start : inner_columns.stop]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert torch.equal(number.decode(twice.clone(), dtype), expected.to(dtype))


@pytest.mark.parametrize("name", ["NVFP4", "MXFP8", "MXFP4", "FP8_PER_CHANNEL_PER_TOKEN"])
def test_cutting_the_encoding_is_encoding_the_cut(name: str) -> None:
    """Exactly so for formats whose scales lie inside the part, and under the same amax."""
    number, whole = formats.get(name), weight(96, 256).bfloat16()
    amax = whole.abs().amax()
    rows, columns = range(10, 70), range(256)
    expected = number.encode(whole[10:70], amax=amax)
    same(number.cut(number.encode(whole, amax=amax), rows, columns).clone(), expected)


def test_a_share_that_starts_inside_a_block() -> None:
    number, whole = formats.get("FP8_PB_WO"), weight(256, 300)
    stored = number.encode(whole)
    share = number.cut(stored, range(64, 192), range(300))
    assert share.origin == (64, 0)
    assert share["weight_scale"].shape == (2, 1, 3, 1)
    last = number.cut(share, range(64, 128), range(130, 290))
    assert last.origin == (0, 2)
    assert last["weight_scale"].shape == (1, 1, 2, 1)
    assert torch.equal(number.decode(last), number.decode(stored)[128:192, 130:290])


@pytest.mark.parametrize("scale_name", ["weight_scale", "weight_scale_inv"])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("lead", [(), (3,)])
def test_block_scales_in_every_convention(
    scale_name: str, flat: bool, dtype: torch.dtype, lead: tuple[int, ...]
) -> None:
    number = formats.get("FP8_BLOCK_SCALES")
    whole = torch.randn(*lead, 200, 300, generator=torch.Generator().manual_seed(1))
    stored = number.rename(number.encode(whole), scale_name, flat=flat)
    scale = stored[scale_name].to(dtype)
    assert scale.shape == (*lead, 2, 3) if flat else (*lead, 2, 1, 3, 1)
    stored = number.stored({"weight": stored["weight"], scale_name: scale})
    grid = scale.reshape(*lead, 2, 3).float()
    spread = grid.repeat_interleave(128, dim=-2).repeat_interleave(128, dim=-1)[..., :200, :300]
    expected = stored["weight"].float() * spread
    assert torch.equal(number.decode(stored), expected)
    cut = number.cut(stored, range(100, 190), range(50, 280))
    assert torch.equal(number.decode(cut), expected[..., 100:190, 50:280])
    assert cut[scale_name].dtype == dtype


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        (range(0), range(64)),
        (range(5, 5), range(64)),
        (range(33), range(64)),
        (range(-1, 5), range(64)),
        (range(32), range(96)),
        (range(32), range(64, 64)),
        (range(0, 32, 2), range(64)),
        (range(8, 4), range(64)),
    ],
)
def test_cuts_outside_the_weight_are_refused(name: str, rows: range, columns: range) -> None:
    stored = formats.get(name).encode(weight(32, 64))
    with pytest.raises(CutError):
        formats.get(name).cut(stored, rows, columns)


@pytest.mark.parametrize("name", STEP)
def test_cuts_through_a_group_are_refused(name: str) -> None:
    stored = formats.get(name).encode(weight(32, 128))
    for columns in (range(8, 128), range(100), range(STEP[name], STEP[name] + 1)):
        with pytest.raises(CutError, match="share one scale"):
            formats.get(name).cut(stored, range(32), columns)


@pytest.mark.parametrize(("name", "suffix"), [("NVFP4", "weight_scale_2"), ("FP8", "weight_scale")])
def test_cuts_across_parts_with_their_own_globals(name: str, suffix: str) -> None:
    number = formats.get(name)
    whole = torch.cat([weight(32, 64, 1), weight(32, 64, 2) * 9, weight(32, 64, 3)])
    stored = number.encode(whole, amax=whole.view(3, -1).abs().amax(dim=1))
    inside = number.cut(stored, range(40, 64), range(64))
    assert inside[suffix].shape == ()
    both = number.cut(stored, range(32, 96), range(64))
    assert both[suffix].shape == (2,)
    for cut, rows in ((inside, slice(40, 64)), (both, slice(32, 96))):
        assert torch.equal(number.decode(cut), number.decode(stored)[rows])
    with pytest.raises(CutError, match="whole parts"):
        number.cut(stored, range(16, 48), range(64))


@pytest.mark.parametrize("name", NAMES)
def test_experts_of_a_stack(name: str) -> None:
    number = formats.get(name)
    matrices = [weight(96, 256, seed) for seed in range(3)]
    stack = number.encode(torch.stack(matrices))
    for index, matrix in enumerate(matrices):
        same(stack.expert(index), number.encode(matrix))
        assert (
            stack.expert(index)["weight"].untyped_storage().data_ptr()
            == stack["weight"].untyped_storage().data_ptr()
        )
    assert torch.equal(
        number.decode(stack), torch.stack([number.decode(number.encode(each)) for each in matrices])
    )
    cut = number.cut(stack, range(16, 48), range(32, 128))
    for index in range(3):
        same(cut.expert(index), number.cut(stack.expert(index), range(16, 48), range(32, 128)))
    with pytest.raises(LayoutError):
        stack.expert(0).expert(0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lead", [(), (3,)])
def test_joined_parts_decode_as_parts(name: str, lead: tuple[int, ...]) -> None:
    number = formats.get(name)
    generator = torch.Generator().manual_seed(0)
    gate, up, more = (
        number.encode(torch.randn(*lead, 128, 256, generator=generator) * size) for size in (1, 3, 0.1)
    )
    fused = number.join([gate, up])
    assert fused.shape == (*lead, 256, 256)
    assert number.check(fused) == []
    assert torch.equal(number.decode(fused), torch.cat([number.decode(gate), number.decode(up)], dim=-2))
    same(number.cut(fused, range(128, 256), range(256)).clone(), up.clone())
    three = number.join([fused, more])
    assert torch.equal(number.decode(three)[..., 256:, :], number.decode(more))


def test_parts_that_cannot_be_joined() -> None:
    nvfp4, block = formats.get("NVFP4"), formats.get("FP8_PB_WO")
    with pytest.raises(LayoutError):
        nvfp4.join([nvfp4.encode(weight(32, 64)), nvfp4.encode(weight(16, 64))])
    with pytest.raises(LayoutError):
        nvfp4.join([nvfp4.encode(weight(32, 64)), nvfp4.encode(weight(32, 128))])
    with pytest.raises(LayoutError):
        nvfp4.join([nvfp4.encode(weight(32, 64)), formats.get("W4A16_NVFP4").encode(weight(32, 64))])
    with pytest.raises(LayoutError, match="128"):
        block.join([block.encode(weight(100, 64)), block.encode(weight(128, 64))])
    assert block.join([block.encode(weight(128, 64)), block.encode(weight(100, 64))]).shape == (228, 64)


@pytest.mark.parametrize("name", NAMES)
def test_rows_can_be_gathered(name: str) -> None:
    number = formats.get(name)
    stored = number.encode(weight(200, 64))
    index = torch.tensor([3, 199, 3, 0, 130, 127])
    for dtype in (torch.float32, torch.bfloat16):
        assert torch.equal(number.gather(stored, index, dtype), number.decode(stored, dtype)[index])
    cut = number.cut(stored, range(50, 190), range(32, 64))
    assert torch.equal(number.gather(cut, index[-2:]), number.decode(cut)[index[-2:]])
    assert number.gather(stored, index[:0]).shape == (0, 64)


@pytest.mark.parametrize("name", NAMES)
def test_decoding_into_a_given_place(name: str) -> None:
    number = formats.get(name)
    stored = number.encode(weight(40, 64))
    values = number.decode(stored)
    wide = torch.zeros(40, 131, dtype=torch.bfloat16)
    number.decode(stored, out=wide[:, 3:67])
    assert torch.equal(wide[:, 3:67], values.bfloat16())
    assert not wide[:, :3].any()
    odd = torch.zeros(40 * 64 + 1)[1:].view(40, 64)
    assert torch.equal(number.decode(stored, out=odd), values)
    assert torch.equal(number.decode(dict(stored.tensors)), values)
    with pytest.raises(LayoutError):
        number.decode(stored, out=torch.empty(40, 32))
