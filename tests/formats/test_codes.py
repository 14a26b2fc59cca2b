"""Element codecs against ml_dtypes, for every code and for values around every boundary."""

import ml_dtypes
import numpy as np
import pytest
import torch

from intarsia.formats import codes
from tests.formats.weights import decoded_e2m1

BYTES = np.arange(256, dtype=np.uint8)


def around_boundaries(values: np.ndarray) -> np.ndarray:
    """Every value, the midpoints between neighbours, and the float32 on either side of each."""
    values = np.unique(values[np.isfinite(values)].astype(np.float32))
    points = np.concatenate([values, (values[1:] + values[:-1]) / 2])
    return np.concatenate([points, np.nextafter(points, np.inf), np.nextafter(points, -np.inf)]).astype(
        np.float32
    )


def test_e4m3_decodes_all_bytes() -> None:
    expected = BYTES.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    assert np.array_equal(codes.decode_e4m3(torch.from_numpy(BYTES)).numpy(), expected, equal_nan=True)
    pairs = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.uint8)
    out = torch.empty(pairs.shape)
    codes.decode_e4m3_into(pairs, out)
    assert np.array_equal(out.numpy(), expected[pairs.numpy()], equal_nan=True)


def test_e2m1_decodes_all_bytes() -> None:
    values = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    expected = np.stack([values[BYTES & 15], values[BYTES >> 4]], axis=1)
    decoded = decoded_e2m1(torch.from_numpy(BYTES).view(-1, 1)).numpy()
    assert np.array_equal(decoded, expected)
    assert np.array_equal(np.signbit(decoded), np.signbit(expected))


def test_e8m0_decodes_all_bytes() -> None:
    expected = BYTES.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
    decoded = codes.decode_e8m0(torch.from_numpy(BYTES)).numpy()
    assert np.array_equal(decoded, expected, equal_nan=True)
    assert decoded[0] == 2.0**-127
    reciprocals = codes.e8m0_reciprocals(torch.from_numpy(BYTES[:254])).numpy()
    assert np.array_equal(reciprocals * decoded[:254], np.ones(254, dtype=np.float32))


@pytest.mark.parametrize(("start", "length"), [(0, 7), (1, 6), (3, 5), (2, 2)])
def test_decoding_at_odd_places(start: int, length: int) -> None:
    weight = torch.from_numpy(BYTES)[start : start + length]
    out = torch.empty(9)[1 : 1 + length]
    codes.decode_e4m3_into(weight, out)
    assert torch.equal(out, codes.decode_e4m3(weight))
    target = torch.empty(2 * length + 1)[1:]
    codes.decode_e2m1_into(weight, target)
    assert torch.equal(target, decoded_e2m1(weight))


def test_e4m3_encodes_as_ml_dtypes_and_saturates() -> None:
    values = around_boundaries(BYTES.view(ml_dtypes.float8_e4m3fn).astype(np.float32))
    random = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
    values = np.concatenate([values, random, random * 100, random * 1e-3])
    expected = np.clip(values, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    assert np.array_equal(codes.encode_e4m3(torch.from_numpy(values)).view(torch.uint8).numpy(), expected)
    above = torch.tensor([449.0, 464.0, 465.0, 480.0, 1e30, float("inf"), -500.0])
    assert codes.encode_e4m3(above).view(torch.uint8).tolist() == [0x7E] * 6 + [0xFE]


def test_e2m1_encodes_as_ml_dtypes() -> None:
    values = around_boundaries(np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32))
    values = np.concatenate([values, np.random.default_rng(1).uniform(-8, 8, 100_000).astype(np.float32)])
    expected = values.astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 15
    ours = codes.encode_e2m1(torch.from_numpy(values)).numpy()
    negative_zero = (values == 0) & np.signbit(values)
    assert np.array_equal(ours[~negative_zero], expected[~negative_zero])
    assert (ours[negative_zero] == 0).all()


TIES = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])


def test_ties() -> None:
    assert codes.encode_e2m1(TIES).tolist() == [0, 2, 2, 4, 4, 6, 6]
    assert codes.encode_e2m1(-TIES).tolist() == [8, 10, 10, 12, 12, 14, 14]
    assert codes.encode_e2m1_ties_down(TIES).tolist() == [0, 1, 2, 3, 4, 5, 6]
    zeros = torch.tensor([0.0, -0.0, 1e-40, -1e-40])
    assert codes.encode_e2m1(zeros).tolist() == [0, 0, 0, 8]
    assert codes.encode_e2m1_ties_down(zeros).tolist() == [8, 8, 0, 8]


@pytest.mark.parametrize("ties_down", [False, True])
def test_packing_equals_the_comparisons(ties_down: bool) -> None:
    edges = torch.from_numpy(around_boundaries(np.arange(-60, 61, dtype=np.float32) / 4))
    tiny = torch.tensor([0.0, -0.0, 1e-45, -1e-45, 1e-38, -1e-38])
    torch.manual_seed(0)
    values = torch.cat([edges, tiny, torch.randn(50_001 + edges.numel() % 2) * 3])
    values = values[: values.numel() // 2 * 2].clamp(-14.9, 14.9)
    each = (codes.encode_e2m1_ties_down if ties_down else codes.encode_e2m1)(values)
    packed = torch.empty(values.numel() // 2, dtype=torch.uint8)
    codes.pack_e2m1_into(values.clone(), packed, ties_down=ties_down)
    assert torch.equal(packed, each[0::2] | (each[1::2] << 4))


def test_ceil_log2_rounds_like_a_float32_log2() -> None:
    """Every float32 near every power of two, subnormals included, and the exact rule elsewhere."""
    steps = torch.arange(-70, 70, dtype=torch.int32)
    bits = ((torch.arange(0, 255, dtype=torch.int32) << 23).unsqueeze(1) + steps).view(-1)
    half = (1 << 22) + steps
    values = torch.cat([bits[bits > 0], half]).view(torch.float32)
    values = values[torch.isfinite(values)]
    expected = (torch.ceil(torch.log2(values)).clamp(min=-127) + 127).to(torch.uint8)
    assert torch.equal(codes.ceil_log2_byte(values), expected)
    lost = values[(expected.float() - 127) < torch.log2(values.double()).ceil().clamp(min=-127)]
    assert lost.numel() > 1000, "the rounding of log2 must matter here"
    random = torch.rand(100_000) * torch.exp2(torch.randint(-126, 127, (100_000,)).float())
    assert torch.equal(
        codes.ceil_log2_byte(random), (torch.ceil(torch.log2(random)).clamp(min=-127) + 127).to(torch.uint8)
    )
    assert codes.ceil_log2_byte(torch.zeros(3)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("size", [16, 32])
def test_block_maxima(size: int) -> None:
    torch.manual_seed(0)
    weight = torch.randn(33, 5 * size).bfloat16()
    expected = weight.float().abs().view(33, 5, size).amax(dim=2)
    assert torch.equal(codes.block_maxima(weight, size), expected)
    weight[3, 7] = float("nan")
    weight[4, 7] = -float("inf")
    found = codes.block_maxima(weight, size)
    assert torch.isnan(found[3, 0])
    assert torch.isinf(found[4, 0])


def test_chunks_cover_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codes, "CHUNK", 100)
    assert list(codes.chunks(torch.empty(7, 40))) == [slice(0, 2), slice(2, 4), slice(4, 6), slice(6, 7)]
    assert list(codes.chunks(torch.empty(2, 400))) == [slice(0, 1), slice(1, 2)]
