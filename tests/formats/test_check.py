"""Checks name every broken rule of layout and values; names resolve, and unknown ones are refused."""

from collections.abc import Callable

import pytest
import torch

from intarsia import formats
from intarsia.formats import LayoutError, Stored, UnknownFormatError

Tensors = dict[str, torch.Tensor]
Change = Callable[[Tensors], object]


def sound(name: str) -> Tensors:
    torch.manual_seed(0)
    return {
        suffix: tensor.clone() for suffix, tensor in formats.get(name).encode(torch.randn(64, 128)).items()
    }


def poke(suffix: str, value: float | int, at: int = 5) -> Change:
    """A change of one stored entry, by its byte for eight-bit tensors."""

    def change(tensors: Tensors) -> None:
        flat = tensors[suffix].view(-1)
        (flat.view(torch.uint8) if flat.element_size() == 1 else flat)[at % flat.numel()] = value

    return change


def put(suffix: str, make: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    return lambda tensors: tensors.update({suffix: make(tensors[suffix])})


FAULTS: list[tuple[str, str, str, Change]] = [
    ("NVFP4", "nan-scale", "weight_scale", poke("weight_scale", 0x7F)),
    ("NVFP4", "nan-scale", "weight_scale", poke("weight_scale", 0xFF)),
    ("NVFP4", "negative-scale", "weight_scale", poke("weight_scale", 0xB8)),
    ("NVFP4", "bad-scale", "weight_scale_2", poke("weight_scale_2", 0.0)),
    ("NVFP4", "bad-scale", "weight_scale_2", poke("weight_scale_2", float("inf"))),
    ("NVFP4", "bad-scale", "weight_scale_2", poke("weight_scale_2", float("nan"))),
    ("NVFP4", "bad-scale", "weight_scale_2", poke("weight_scale_2", -1e-4)),
    ("NVFP4", "bad-scale", "input_scale", lambda t: t.update(input_scale=torch.tensor(0.0))),
    ("NVFP4", "dtype", "input_scale", lambda t: t.update(input_scale=torch.tensor(1.0).bfloat16())),
    ("NVFP4", "dtype", "weight_scale_2", put("weight_scale_2", lambda t: t.bfloat16())),
    ("NVFP4", "shape", "weight_scale_2", put("weight_scale_2", lambda t: t.expand(3))),
    ("NVFP4", "shape", "weight_scale", put("weight_scale", lambda t: t[:, :4])),
    ("NVFP4", "shape", "weight_scale", put("weight_scale", lambda t: t.t())),
    (
        "NVFP4",
        "swizzled-scale",
        "weight_scale",
        put("weight_scale", lambda t: t.reshape(-1).view(torch.uint8)),
    ),
    ("NVFP4", "dtype", "weight_scale", put("weight_scale", lambda t: t.view(torch.uint8))),
    ("NVFP4", "dtype", "weight", put("weight", lambda t: t.view(torch.int8))),
    ("NVFP4", "shape", "weight", put("weight", lambda t: t[:, :61])),
    ("NVFP4", "missing-tensor", "weight_scale_2", lambda t: t.pop("weight_scale_2")),
    ("NVFP4", "extra-tensor", "_double_scale", lambda t: t.update(_double_scale=torch.ones(()))),
    ("W4A16_NVFP4", "extra-tensor", "input_scale", lambda t: t.update(input_scale=torch.ones(()))),
    ("MXFP8", "nan-scale", "weight_scale", poke("weight_scale", 0xFF)),
    ("MXFP8", "nan-element", "weight", poke("weight", 0x7F)),
    ("MXFP8", "dtype", "weight_scale", put("weight_scale", lambda t: t.float())),
    ("MXFP8", "shape", "weight_scale", put("weight_scale", lambda t: t[:32])),
    ("MXFP4", "nan-scale", "weight_scale", poke("weight_scale", 0xFF)),
    ("MXFP4", "missing-tensor", "weight_scale", lambda t: t.pop("weight_scale")),
    ("FP8", "bad-scale", "weight_scale", poke("weight_scale", 0.0)),
    ("FP8", "nan-element", "weight", poke("weight", 0xFF)),
    ("FP8", "extra-tensor", "weight_scale_2", lambda t: t.update(weight_scale_2=torch.ones(()))),
    ("FP8_PER_CHANNEL_PER_TOKEN", "bad-scale", "weight_scale", poke("weight_scale", -1.0)),
    ("FP8_PER_CHANNEL_PER_TOKEN", "shape", "weight_scale", put("weight_scale", lambda t: t[:63])),
    ("FP8_PB_WO", "bad-scale", "weight_scale", poke("weight_scale", float("nan"))),
    ("FP8_PB_WO", "shape", "weight_scale", put("weight_scale", lambda t: t.expand(2, 1, 1, 1))),
    ("FP8_PB_WO", "extra-tensor", "weight_scale_inv", lambda t: t.update(weight_scale_inv=torch.ones(1, 1))),
    ("FP8_PB_WO", "nan-element", "weight", poke("weight", 0x7F)),
    ("BF16", "not-finite", "weight", poke("weight", float("nan"))),
    ("BF16", "dtype", "weight", put("weight", lambda t: t.half())),
]


@pytest.mark.parametrize("name", formats.names())
def test_sound_weights_have_no_violations(name: str) -> None:
    assert formats.get(name).check(sound(name)) == []
    assert formats.get(name).remarks(sound(name)) == []


@pytest.mark.parametrize(("name", "rule", "suffix", "change"), FAULTS)
def test_a_fault_is_named(name: str, rule: str, suffix: str, change: Change) -> None:
    tensors = sound(name)
    change(tensors)
    found = formats.get(name).check(tensors, "model.layers.3.mlp")
    assert [(each.rule, each.where) for each in found] == [(rule, f"model.layers.3.mlp.{suffix}")]
    if rule in ("dtype", "shape", "swizzled-scale", "missing-tensor", "extra-tensor"):
        with pytest.raises(LayoutError, match=suffix):
            formats.get(name).stored(tensors)
        with pytest.raises(LayoutError, match=suffix):
            formats.get(name).decode(tensors)


def test_every_fault_of_a_weight_is_reported_with_its_place() -> None:
    tensors = sound("NVFP4")
    for change in (
        poke("weight_scale", 0x7F, 9),
        poke("weight_scale", 0x7F, 30),
        poke("weight_scale", 0x81, 2),
    ):
        change(tensors)
    tensors["weight_scale_2"].zero_()
    found = {each.rule: each.found for each in formats.get("NVFP4").check(tensors)}
    assert set(found) == {"nan-scale", "negative-scale", "bad-scale"}
    assert found["nan-scale"] == "0x7F at [1, 1], and 1 more"
    assert found["negative-scale"] == "0x81 at [0, 2]"


def test_the_export_of_an_all_zero_weight_is_recognised() -> None:
    tensors = sound("NVFP4")
    tensors["weight_scale_2"].zero_()
    tensors["weight_scale"].view(torch.uint8).fill_(0xFF)
    tensors["weight"].fill_(0x77)
    found = formats.get("NVFP4").check(tensors)
    assert [each.rule for each in found] == ["zero-weight-export"]
    assert found[0].action


def test_oddities_are_remarks_not_violations() -> None:
    number, tensors = formats.get("NVFP4"), sound("NVFP4")
    tensors["weight_scale"].view(torch.uint8)[3, 4] = 0
    tensors["weight_scale_2"].fill_(3584.0)
    assert number.check(tensors) == []
    assert [(each.rule, each.where) for each in number.remarks(tensors, "m")] == [
        ("zero-scale", "m.weight_scale"),
        ("large-global", "m.weight_scale_2"),
    ]
    assert not number.decode(tensors)[3, 64:80].any()
    tensors["weight"][3, 32:40] = 0x88
    tensors["weight_scale_2"].fill_(1e-4)
    assert number.remarks(tensors) == []


def test_elements_are_read_only_when_asked() -> None:
    tensors = sound("MXFP8")
    poke("weight", 0x7F)(tensors)
    assert formats.get("MXFP8").check(tensors, elements=False) == []


def test_exponents_are_reinterpreted_not_converted() -> None:
    tensors = sound("MXFP8")
    values = formats.get("MXFP8").decode(tensors)
    tensors["weight_scale"] = tensors["weight_scale"].view(torch.float8_e8m0fnu)
    stored = formats.get("MXFP8").stored(tensors)
    assert stored["weight_scale"].dtype == torch.uint8
    assert torch.equal(formats.get("MXFP8").decode(stored), values)
    renamed = {"weight": stored["weight"], "weight_scale_inv": stored["weight_scale"]}
    assert torch.equal(formats.get("MXFP8").decode(renamed), values)
    both = {**renamed, "weight_scale": stored["weight_scale"]}
    assert [each.rule for each in formats.get("MXFP8").check(both)] == ["extra-tensor"]


@pytest.mark.parametrize(
    ("byte", "value"),
    [(0, 2.0**-127), (1, 2.0**-126), (126, 0.5), (127, 1.0), (128, 2.0), (108, 2.0**-19), (254, 2.0**127)],
)
def test_exponent_bytes(byte: int, value: float) -> None:
    one = torch.full((1, 32), 0x38, dtype=torch.uint8).view(torch.float8_e4m3fn)
    tensors = {"weight": one, "weight_scale": torch.tensor([[byte]], dtype=torch.uint8)}
    assert set(formats.get("MXFP8").decode(tensors).view(-1).tolist()) == {value}


def test_subnormal_block_scales() -> None:
    """All bytes of a scale, the subnormal ones included, under codes of one."""
    scale = torch.arange(0x7F, dtype=torch.uint8).view(-1, 1)
    tensors = {
        "weight": torch.full((0x7F, 8), 0x22, dtype=torch.uint8),
        "weight_scale": scale.view(torch.float8_e4m3fn),
        "weight_scale_2": torch.tensor(0.5),
    }
    expected = scale.view(torch.float8_e4m3fn).float() * 0.5
    assert torch.equal(formats.get("NVFP4").decode(tensors), expected.expand(-1, 16))
    assert expected[1] == 2.0**-10


def test_the_order_of_multiplication() -> None:
    """The step is rounded first, then the product: code * fl(scale * global)."""
    scale_2 = torch.tensor(1.1e-3)
    tensors = {
        "weight": torch.full((1, 8), 0x55, dtype=torch.uint8),
        "weight_scale": torch.tensor([[0x3B]], dtype=torch.uint8).view(torch.float8_e4m3fn),
        "weight_scale_2": scale_2,
    }
    first = torch.tensor(3.0) * (torch.tensor(1.375) * scale_2)
    assert formats.get("NVFP4").decode(tensors)[0, 0] == first


def test_names_and_aliases() -> None:
    assert formats.get("nvfp4_static") is formats.get("NVFP4")
    for alias in ("FP8_BLOCK_SCALES", "FP8_PB", "FP8_PB_REAL", "fp8_pb_wo", "fp8_pb_real"):
        assert formats.get(alias).name == "FP8_PB_WO"
    for alias, name in formats.ALIASES.items():
        assert formats.get(alias).name == name
        assert formats.canonical(alias.lower()) == name
    assert [formats.get(name).name for name in formats.names()] == list(formats.names())


@pytest.mark.parametrize(
    ("name", "near"), [("NVFP5", "NVFP4"), ("MXFP16", "MXFP"), ("INT4_AWQ", "one of"), ("", "one of")]
)
def test_unknown_names_are_refused_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UnknownFormatError, match=near):
        formats.get(name)


def test_stored_is_a_frozen_mapping() -> None:
    stored = formats.get("NVFP4").encode(torch.randn(4, 32))
    assert list(stored) == ["weight", "weight_scale", "weight_scale_2"]
    assert len(stored) == 3
    assert (stored.rows, stored.columns) == (4, 32)
    assert stored.nbytes == 4 * 16 + 4 * 2 + 4
    with pytest.raises(AttributeError):
        stored.shape = (1, 1)  # type: ignore[misc]
    with pytest.raises(TypeError):
        stored.tensors["weight"] = stored["weight"]  # type: ignore[index]
    with pytest.raises(KeyError):
        stored["bias"]
    copy = stored.clone()
    assert isinstance(copy, Stored)
    assert all(copy[suffix].data_ptr() != stored[suffix].data_ptr() for suffix in stored)
    assert copy.to("cpu").shape == stored.shape
