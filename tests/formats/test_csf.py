"""The CSF codecs: the published vectors, the canonical rule against a plain reference, slicing, and
refusals.
"""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.formats import CsfError, CutError, csf
from tests.formats import csf_reference

CODECS = tuple(csf.CODECS)
STEPS = {"nvfp4_slab": (16, 2), "mxfp4_slab": (16, 1), "csf_32x2_v1": (32, 2)}


def matrix(rows: list[str], count: int = 16) -> torch.Tensor:
    """A matrix from hexadecimal rows, filled up with the first one."""
    values = [list(bytes.fromhex(row)) for row in rows]
    return torch.tensor(values + values[:1] * (count - len(values)), dtype=torch.uint8)


def flat(tensor: torch.Tensor) -> list[int]:
    return tensor.reshape(-1).tolist()


@st.composite
def matrices(draw: st.DrawFn, codec: str) -> torch.Tensor:
    """Scales as real ones are: near a level that drifts, with outliers now and then, or just any bytes."""
    row_step, column_step = STEPS[codec]
    rows, columns = row_step * draw(st.integers(1, 3)), column_step * draw(st.integers(1, 12))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    noise = torch.randn(rows, columns, generator=generator) * draw(st.sampled_from([0.0, 0.6, 4.0, 30.0]))
    level = draw(st.integers(0, 255)) + torch.randn(rows, 1, generator=generator) * 3
    outliers = torch.rand(rows, columns, generator=generator) < draw(st.sampled_from([0.0, 0.02, 0.6]))
    anything = torch.randint(0, 256, (rows, columns), generator=generator)
    return torch.where(outliers, anything, (level + noise).round().clamp(0, 255)).to(torch.uint8)


def test_published_nvfp4_vector() -> None:
    streams = csf.encode(matrix(["38383838", "303f4020", "00ff00ff", "707e787c"]), "nvfp4_slab")
    fixed = "2930006f" + "29" * 12 + "ffff" + "f000" + "0000" + "f1d9" + "ffff" * 12
    assert bytes(flat(streams["nvfp4_csf_fixed"])).hex() == fixed
    assert streams["nvfp4_csf_fixed"].shape == (1, 16 * 3)
    assert streams["nvfp4_csf_exceptions"].tolist() == [0x40000006, 0x20000007, 0xFF000009, 0xFF00000B]


def test_published_mxfp4_vector() -> None:
    rows = ["78" * 9, "787978797a77787978", "00ff00ff00ff00ffff", "79" * 9]
    streams = csf.encode(matrix(rows), "mxfp4_slab")
    fixed = "7778fe78" + "77" * 12 + "ff01" + "8a00" + "aa01" + "ff01" + "ff01" * 12
    assert bytes(flat(streams["mxfp4_csf_fixed"])).hex() == fixed
    words = [0x7A00000D, 0x7700000E, 0x12, 0x14, 0x16, 0x18]
    assert streams["mxfp4_csf_exceptions"].tolist() == words


@pytest.mark.parametrize(("codec", "bits"), [("nvfp4_slab", 4), ("mxfp4_slab", 1)])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_slabs_follow_the_canonical_rule(codec: str, bits: int, data: st.DataObject) -> None:
    scales = data.draw(matrices(codec))
    fixed, words = csf_reference.encode_slab(scales.tolist(), bits)
    streams = csf.encode(scales, codec)
    assert flat(streams[csf.components(codec)[0]]) == fixed
    assert streams[csf.components(codec)[1]].tolist() == words


@settings(max_examples=60, deadline=None)
@given(scales=matrices("csf_32x2_v1"))
def test_blocks_follow_the_canonical_rule(scales: torch.Tensor) -> None:
    expected = csf_reference.encode_block(scales.tolist())
    assert {name: flat(tensor) for name, tensor in csf.encode(scales, "csf_32x2_v1").items()} == expected


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_decoding_gives_the_scales_back(codec: str, data: st.DataObject) -> None:
    scales = data.draw(matrices(codec))
    components = csf.encode(scales, codec)
    assert tuple(components) == csf.components(codec)
    assert torch.equal(csf.decode(components, *scales.shape, codec), scales)
    assert csf.is_canonical(components, *scales.shape, codec)
    assert csf.check(components, *scales.shape, codec) == []
    out = torch.full_like(scales, 7).view(torch.float8_e4m3fn)
    csf.decode_into(components, out, codec)
    assert torch.equal(out.view(torch.uint8), scales)


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_a_slice_of_the_streams_decodes_to_the_slice(codec: str, data: st.DataObject) -> None:
    scales = data.draw(matrices(codec))
    rows, columns = (
        range(
            *(
                step * at
                for at in sorted(data.draw(st.sets(st.integers(0, size // step), min_size=2, max_size=2)))
            )
        )
        for step, size in zip(STEPS[codec], scales.shape, strict=True)
    )
    part = csf.cut(csf.encode(scales, codec), (scales.shape[0], scales.shape[1]), rows, columns, codec)
    expected = scales[rows.start : rows.stop, columns.start : columns.stop]
    assert csf.check(part, len(rows), len(columns), codec) == []
    assert torch.equal(csf.decode(part, len(rows), len(columns), codec), expected)


def test_a_slice_of_a_slice() -> None:
    torch.manual_seed(3)
    scales = torch.randint(0, 256, (96, 24), dtype=torch.uint8)
    for codec in CODECS:
        first = csf.cut(csf.encode(scales, codec), (96, 24), range(32, 96), range(4, 20), codec)
        second = csf.cut(first, (64, 16), range(32, 64), range(2, 10), codec)
        assert torch.equal(csf.decode(second, 32, 8, codec), scales[64:96, 6:14])


def test_a_column_slice_need_not_be_canonical() -> None:
    scales = torch.tensor([[0] * 6 + [200] * 4] * 16, dtype=torch.uint8)
    part = csf.cut(csf.encode(scales, "nvfp4_slab"), (16, 10), range(16), range(6, 10), "nvfp4_slab")
    assert part["nvfp4_csf_exceptions"].numel() == 64
    assert not csf.is_canonical(part, 16, 4, "nvfp4_slab")


@pytest.mark.parametrize(("value", "base", "code"), [(56, 41, 15), (15, 0, 15), (3, 0, 3), (255, 240, 15)])
def test_constant_rows(value: int, base: int, code: int) -> None:
    streams = csf.encode(torch.full((16, 4), value, dtype=torch.uint8), "nvfp4_slab")
    assert flat(streams["nvfp4_csf_fixed"]) == [base] * 16 + [code * 17] * 32


def test_a_flat_fixed_stream_is_accepted() -> None:
    scales = matrix(["38383838"])
    streams = csf.encode(scales, "nvfp4_slab")
    streams["nvfp4_csf_fixed"] = streams["nvfp4_csf_fixed"].view(-1)
    assert torch.equal(csf.decode(streams, 16, 4, "nvfp4_slab"), scales)


def test_a_redundant_exception_is_legal_but_not_canonical() -> None:
    streams = csf.encode(matrix(["38383838"]), "nvfp4_slab")
    streams["nvfp4_csf_exceptions"] = torch.tensor([0x38 << 24 | 5], dtype=torch.int64).to(torch.uint32)
    assert torch.equal(csf.decode(streams, 16, 4, "nvfp4_slab"), matrix(["38383838"]))
    assert not csf.is_canonical(streams, 16, 4, "nvfp4_slab")


def test_the_last_position_of_a_full_size_matrix() -> None:
    scales = torch.full((16, 1 << 20), 60, dtype=torch.uint8)
    scales[15, -1] = 200
    streams = csf.encode(scales, "nvfp4_slab")
    assert streams["nvfp4_csf_exceptions"].tolist() == [200 << 24 | 0xFFFFFF]
    assert torch.equal(csf.decode(streams, 16, 1 << 20, "nvfp4_slab"), scales)


def words(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64).to(torch.uint32)


Change = Callable[[dict[str, torch.Tensor]], object]
SLAB_FAULTS: dict[str, tuple[str, Change]] = {
    "fixed-missing": ("nvfp4_csf_fixed", lambda c: c.pop("nvfp4_csf_fixed")),
    "exceptions-missing": ("nvfp4_csf_exceptions", lambda c: c.pop("nvfp4_csf_exceptions")),
    "extra": ("csf_base", lambda c: c.update(csf_base=c["nvfp4_csf_fixed"])),
    "fixed-dtype": ("nvfp4_csf_fixed", lambda c: c.update(nvfp4_csf_fixed=c["nvfp4_csf_fixed"].int())),
    "words-dtype": (
        "nvfp4_csf_exceptions",
        lambda c: c.update(nvfp4_csf_exceptions=torch.zeros(1, dtype=torch.int32)),
    ),
    "fixed-short": (
        "nvfp4_csf_fixed",
        lambda c: c.update(nvfp4_csf_fixed=c["nvfp4_csf_fixed"].view(-1)[:-1]),
    ),
    "fixed-rank": (
        "nvfp4_csf_fixed",
        lambda c: c.update(nvfp4_csf_fixed=c["nvfp4_csf_fixed"].view(2, 1, -1)),
    ),
    "base": ("nvfp4_csf_fixed", lambda c: c["nvfp4_csf_fixed"].view(-1)[:1].fill_(241)),
    "order": ("nvfp4_csf_exceptions", lambda c: c.update(nvfp4_csf_exceptions=words(9, 5))),
    "twice": ("nvfp4_csf_exceptions", lambda c: c.update(nvfp4_csf_exceptions=words(9, 9))),
    "position": ("nvfp4_csf_exceptions", lambda c: c.update(nvfp4_csf_exceptions=words(5, 128))),
    "words-rank": ("nvfp4_csf_exceptions", lambda c: c.update(nvfp4_csf_exceptions=words(1, 2).view(1, 2))),
    "too-many": ("nvfp4_csf_exceptions", lambda c: c.update(nvfp4_csf_exceptions=words(*range(129)))),
}
BLOCK_FAULTS: dict[str, tuple[str, Change]] = {
    **{f"{name}-missing": (name, lambda c, name=name: c.pop(name)) for name in csf.components("csf_32x2_v1")},
    **{
        f"{name}-dtype": (name, lambda c, name=name: c.update({name: c[name].short()}))
        for name in csf.components("csf_32x2_v1")
    },
    **{
        f"{name}-shape": (name, lambda c, name=name: c.update({name: c[name].reshape(-1)[:-1]}))
        for name in csf.components("csf_32x2_v1")
    },
    "extra": ("csf_scale", lambda c: c.update(csf_scale=c["csf_base"])),
    "base": ("csf_base", lambda c: c["csf_base"].view(-1)[:1].fill_(241)),
    "position": ("csf_escape_position", lambda c: c["csf_escape_position"][-1:].fill_(64)),
    "order": ("csf_escape_position", lambda c: c["csf_escape_position"][:2].copy_(torch.tensor([9, 4]))),
    "twice": ("csf_escape_position", lambda c: c["csf_escape_position"][:2].fill_(9)),
}


def two_escapes_a_block() -> dict[str, torch.Tensor]:
    scales = torch.full((32, 4), 60, dtype=torch.uint8)
    scales[3] = 200
    return csf.encode(scales, "csf_32x2_v1")


@pytest.mark.parametrize("fault", SLAB_FAULTS)
def test_slab_refusals_name_the_component(fault: str) -> None:
    component, change = SLAB_FAULTS[fault]
    streams = csf.encode(matrix(["38383838"] * 32, 32), "nvfp4_slab")
    change(streams)
    with pytest.raises(CsfError, match=component):
        csf.decode(streams, 32, 4, "nvfp4_slab")
    assert any(
        component in found.where for found in csf.check(streams, 32, 4, "nvfp4_slab", "m.weight_scale")
    )


@pytest.mark.parametrize("fault", BLOCK_FAULTS)
def test_block_refusals_name_the_component(fault: str) -> None:
    component, change = BLOCK_FAULTS[fault]
    components = two_escapes_a_block()
    change(components)
    with pytest.raises(CsfError, match=component):
        csf.decode(components, 32, 4, "csf_32x2_v1")
    assert any(
        component in found.where for found in csf.check(components, 32, 4, "csf_32x2_v1", "m.weight_scale")
    )


def test_a_full_block_of_escapes_is_refused() -> None:
    components = two_escapes_a_block()
    components["csf_escape_count"].view(-1)[:] = torch.tensor([64, 0])
    components["csf_escape_position"] = torch.arange(64, dtype=torch.uint8)
    components["csf_escape_value"] = torch.zeros(64, dtype=torch.uint8)
    with pytest.raises(CsfError, match="csf_escape_count"):
        csf.decode(components, 32, 4, "csf_32x2_v1")


def test_set_bits_after_the_last_column_are_refused() -> None:
    streams = csf.encode(matrix(["78" * 9]), "mxfp4_slab")
    streams["mxfp4_csf_fixed"].view(-1)[17] |= 2
    with pytest.raises(CsfError, match="mxfp4_csf_fixed"):
        csf.decode(streams, 16, 9, "mxfp4_slab")


def test_every_violation_is_reported() -> None:
    components = two_escapes_a_block()
    components["csf_base"][:] = 250
    components["csf_escape_position"][:] = 99
    rules = {found.rule for found in csf.check(components, 32, 4, "csf_32x2_v1")}
    assert rules == {"csf-range", "csf-order"}
    assert len(csf.check(components, 32, 4, "csf_32x2_v1")) == 3


@pytest.mark.parametrize(
    ("codec", "rows", "columns"),
    [
        ("nvfp4_slab", 24, 4),
        ("nvfp4_slab", 16, 3),
        ("nvfp4_slab", 32, 1 << 20),
        ("nvfp4_slab", 0, 4),
        ("mxfp4_slab", 8, 4),
        ("mxfp4_slab", 16, 0),
        ("csf_32x2_v1", 16, 2),
        ("csf_32x2_v1", 32, 3),
    ],
)
def test_matrices_that_a_codec_cannot_hold(codec: str, rows: int, columns: int) -> None:
    scales = torch.zeros(1, dtype=torch.uint8).expand(rows, columns)
    with pytest.raises(CsfError):
        csf.encode(scales, codec)
    with pytest.raises(CsfError):
        csf.decode({}, rows, columns, codec)
    assert [found.rule for found in csf.check({}, rows, columns, codec)] == ["csf-matrix"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        (range(8, 32), range(4)),
        (range(24), range(4)),
        (range(0), range(4)),
        (range(96), range(4)),
        (range(32), range(6)),
        (range(0, 32, 2), range(4)),
    ],
)
def test_cuts_that_split_or_leave_the_matrix(codec: str, rows: range, columns: range) -> None:
    components = csf.encode(torch.full((64, 4), 60, dtype=torch.uint8), codec)
    with pytest.raises(CutError):
        csf.cut(components, (64, 4), rows, columns, codec)


@pytest.mark.parametrize("codec", ["nvfp4_slab", "csf_32x2_v1"])
def test_cuts_through_a_byte_of_codes(codec: str) -> None:
    components = csf.encode(torch.full((64, 4), 60, dtype=torch.uint8), codec)
    with pytest.raises(CutError):
        csf.cut(components, (64, 4), range(32), range(1, 3), codec)


def test_unknown_codecs_and_outputs_are_refused() -> None:
    components = two_escapes_a_block()
    with pytest.raises(CsfError, match="csf_32x2_v1"):
        csf.decode(components, 32, 4, "csf")
    for out in (
        torch.empty(32, 4),
        torch.empty(4, 32, dtype=torch.uint8).t(),
        torch.empty(128, dtype=torch.uint8),
    ):
        with pytest.raises(CsfError):
            csf.decode_into(components, out, "csf_32x2_v1")
    with pytest.raises(CsfError):
        csf.encode(torch.zeros(32, 4), "csf_32x2_v1")
