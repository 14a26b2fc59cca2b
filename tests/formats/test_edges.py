"""What encoders do at the edges: zeros, NaN, infinity, tiny values, shapes, and a shared amax."""

import math

import pytest
import torch

from intarsia import formats
from intarsia.formats import UnencodableError, codes
from tests.formats.weights import DTYPES

QUANTIZED = ("NVFP4", "W4A16_NVFP4", "MXFP8", "MXFP4", "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO")


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_all_zero_weight_decodes_to_zeros_and_is_sound(name: str, dtype: torch.dtype) -> None:
    number = formats.get(name)
    stored = number.encode(torch.zeros(64, 128, dtype=dtype))
    assert torch.equal(number.decode(stored), torch.zeros(64, 128))
    assert number.check(stored) == []
    assert number.remarks(stored) == []


def test_the_documented_zeros() -> None:
    zero = torch.zeros(2, 128)
    nvfp4 = formats.get("NVFP4").encode(zero)
    assert nvfp4["weight_scale_2"].item() == 1.0
    assert set(nvfp4["weight_scale"].view(torch.uint8).view(-1).tolist()) == {0x38}
    assert not nvfp4["weight"].any()
    mxfp4 = formats.get("MXFP4").encode(zero)
    assert set(mxfp4["weight"].view(-1).tolist()) == {0x88}
    assert not mxfp4["weight_scale"].any()
    mxfp8 = formats.get("MXFP8").encode(zero)
    assert not mxfp8["weight"].view(torch.uint8).any()
    assert not mxfp8["weight_scale"].any()
    for name in ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO"):
        eight = formats.get(name).encode(zero)
        assert (eight["weight_scale"] == 1.0).all()
        assert not eight["weight"].view(torch.uint8).any()


def test_a_zero_block_in_nvfp4() -> None:
    weight = torch.ones(1, 32)
    weight[0, :16] = 0
    stored = formats.get("NVFP4").encode(weight)
    assert stored["weight_scale"].view(torch.uint8).tolist() == [[0x38, 0x7E]]
    assert stored["weight"].tolist() == [[0] * 8 + [0x77] * 8]


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_that_are_not_finite_are_refused_by_place(name: str, value: float, dtype: torch.dtype) -> None:
    weight = torch.randn(48, 128).to(dtype)
    weight[37, 101] = value
    with pytest.raises(UnencodableError, match="row 37, column 101"):
        formats.get(name).encode(weight)
    stack = torch.randn(3, 48, 128).to(dtype)
    stack[2, 5, 9] = value
    with pytest.raises(UnencodableError, match="expert 2, row 5, column 9"):
        formats.get(name).encode(stack)


@pytest.mark.parametrize("name", ["BF16", "F16", "F32"])
def test_plain_formats_keep_what_is_not_finite(name: str) -> None:
    weight = torch.tensor([[1.0, math.nan, math.inf]])
    stored = formats.get(name).encode(weight)
    assert torch.equal(formats.get(name).decode(stored), weight) or torch.isnan(stored["weight"][0, 1])
    assert [found.rule for found in formats.get(name).check(stored)] == ["not-finite"]
    assert formats.get(name).check(stored, elements=False) == []


@pytest.mark.parametrize(
    ("name", "group"), [("NVFP4", 16), ("W4A16_NVFP4", 16), ("MXFP8", 32), ("MXFP4", 32)]
)
def test_columns_must_be_whole_blocks(name: str, group: int) -> None:
    for columns in (group - 1, group + 8, 3 * group + 2):
        with pytest.raises(UnencodableError, match=f"multiple of {group}"):
            formats.get(name).encode(torch.randn(4, columns))
        with pytest.raises(UnencodableError, match=f"multiple of {group}"):
            formats.get(name).layout((4, columns))


@pytest.mark.parametrize("name", formats.names())
def test_what_cannot_be_a_weight_is_refused(name: str) -> None:
    for weight in (
        torch.zeros(64, 64, dtype=torch.float64),
        torch.zeros(64, 64, dtype=torch.int32),
        torch.zeros(64),
        torch.zeros(0, 64),
        torch.zeros(2, 2, 64, 64),
    ):
        with pytest.raises(UnencodableError):
            formats.get(name).encode(weight)


@pytest.mark.parametrize("name", formats.names())
def test_encode_leaves_its_source_alone(name: str) -> None:
    for dtype in DTYPES:
        weight = torch.randn(64, 128).to(dtype)
        copy = weight.clone()
        stored = formats.get(name).encode(weight)
        assert torch.equal(weight, copy)
        assert stored.shape == (64, 128)
        for suffix, spec in formats.get(name).layout((64, 128)).items():
            assert (stored[suffix].dtype, tuple(stored[suffix].shape)) == (spec.dtype, spec.shape)
        assert list(stored) == list(formats.get(name).layout((64, 128)))
        assert stored.nbytes == sum(spec.nbytes for spec in formats.get(name).layout((64, 128)).values())


@pytest.mark.parametrize("name", QUANTIZED)
def test_chunks_do_not_change_bytes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    weight = torch.randn(300, 256).bfloat16()
    whole = formats.get(name).encode(weight)
    values = formats.get(name).decode(whole)
    monkeypatch.setattr(codes, "CHUNK", 7 * 256)
    pieces = formats.get(name).encode(weight)
    for suffix in whole:
        assert torch.equal(
            whole[suffix].reshape(-1).view(torch.uint8), pieces[suffix].reshape(-1).view(torch.uint8)
        )
    assert torch.equal(formats.get(name).decode(whole), values)


@pytest.mark.parametrize("name", QUANTIZED)
def test_tiny_weights_stay_finite(name: str) -> None:
    for size in (1e-30, 1e-36, 1e-39, 1e-42, 1.4e-45):
        weight = torch.randn(64, 128).sign() * size
        weight[:, ::3] = 0
        number = formats.get(name)
        stored = number.encode(weight)
        values = number.decode(stored)
        assert torch.isfinite(values).all()
        assert (values[:, ::3] == 0).all()
        assert number.check(stored) == []


@pytest.mark.parametrize("name", ["NVFP4", "FP8"])
def test_a_shared_amax(name: str) -> None:
    torch.manual_seed(0)
    number = formats.get(name)
    gate, up = torch.randn(32, 64), torch.randn(32, 64) * 0.3
    shared = torch.maximum(gate.abs().amax(), up.abs().amax())
    globals_ = {number.encode(part, amax=shared)[GLOBAL[name]].item() for part in (gate, up)}
    assert len(globals_) == 1
    fused = torch.cat([gate, up])
    both = number.encode(fused, amax=shared)
    alone = number.encode(up, amax=float(shared))
    assert torch.equal(number.decode(both)[32:], number.decode(alone))
    assert torch.equal(number.decode(number.encode(fused)), number.decode(both))
    for wrong in (shared * 0.9, math.nan, math.inf, -1.0, torch.ones(3), torch.ones(2, 2)):
        with pytest.raises(UnencodableError, match="amax"):
            number.encode(fused, amax=wrong)


GLOBAL = {"NVFP4": "weight_scale_2", "FP8": "weight_scale"}


@pytest.mark.parametrize("name", GLOBAL)
def test_an_amax_for_each_row_part(name: str) -> None:
    torch.manual_seed(0)
    number = formats.get(name)
    experts = torch.randn(3, 64, 96) * torch.tensor([1.0, 0.1]).repeat_interleave(32).view(1, 64, 1)
    amax = experts.abs().view(3, 2, -1).amax(dim=2)
    stored = number.encode(experts, amax=amax)
    assert stored[GLOBAL[name]].shape == (3, 2)
    assert number.check(stored) == []
    values = number.decode(stored)
    for expert in range(3):
        for rows in (range(32), range(32, 64)):
            alone = number.encode(experts[expert, rows.start : rows.stop])
            assert torch.equal(values[expert, rows.start : rows.stop], number.decode(alone))
            cut = number.cut(stored.expert(expert), rows, range(96))
            assert torch.equal(cut["weight"].view(torch.uint8), alone["weight"].view(torch.uint8))
            assert torch.equal(cut[GLOBAL[name]], alone[GLOBAL[name]])


def test_encoding_under_a_stored_global_scale() -> None:
    torch.manual_seed(0)
    weight = torch.randn(3, 64, 96).bfloat16()
    number = formats.get("NVFP4")
    stored = number.encode(weight, amax=torch.tensor([9.0, 7.0, 8.0]))
    again = number.encode_again(weight, stored["weight_scale_2"])
    for suffix in stored:
        pair = [each[suffix].reshape(-1).view(torch.uint8) for each in (stored, again)]
        assert torch.equal(*pair), suffix
