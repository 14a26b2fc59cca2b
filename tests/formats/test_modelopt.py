"""Encoders give the bytes of nvidia-modelopt's tensor classes, for every source dtype and adversarial
weight.
"""

import pytest
import torch

from intarsia import formats
from tests.formats import oracles
from tests.formats.weights import DTYPES, MAKERS, make

cases = pytest.mark.parametrize("name", MAKERS)
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def raw(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def same_bytes(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    different = (raw(ours) != raw(theirs)).nonzero()
    assert different.numel() == 0, f"{len(different)} bytes differ, the first at {different[0].tolist()}"


@cases
@dtypes
def test_nvfp4(name: str, dtype: torch.dtype) -> None:
    weight = make(name, dtype)
    theirs, scale, scale_2 = oracles.NVFP4QTensor.quantize(weight.clone(), 16)
    ours = formats.get("NVFP4").encode(weight)
    same_bytes(ours["weight"], theirs._quantized_data)
    same_bytes(ours["weight_scale"], scale)
    same_bytes(ours["weight_scale_2"], scale_2)


@cases
@dtypes
def test_nvfp4_under_a_shared_amax(name: str, dtype: torch.dtype) -> None:
    weight = make(name, dtype)
    amax = weight.abs().amax().float() * 1.7
    theirs, scale, scale_2 = oracles.NVFP4QTensor.quantize(
        weight.clone(), 16, weights_scaling_factor_2=amax / 2688
    )
    ours = formats.get("NVFP4").encode(weight, amax=amax)
    same_bytes(ours["weight"], theirs._quantized_data)
    same_bytes(ours["weight_scale"], scale)
    same_bytes(ours["weight_scale_2"], scale_2)


@cases
@dtypes
def test_mxfp8(name: str, dtype: torch.dtype) -> None:
    weight = make(name, dtype)
    theirs, scale = oracles.MXFP8QTensor.quantize(weight.clone())
    ours = formats.get("MXFP8").encode(weight)
    same_bytes(ours["weight"], theirs._quantized_data)
    same_bytes(ours["weight_scale"], scale)


@cases
@dtypes
def test_mxfp4(name: str, dtype: torch.dtype) -> None:
    weight = make(name, dtype)
    theirs, scale = oracles.MXFP4QTensor.quantize(weight.clone(), 32)
    ours = formats.get("MXFP4").encode(weight)
    same_bytes(ours["weight"], theirs._quantized_data)
    same_bytes(ours["weight_scale"], scale.view(weight.shape[0], -1))


@cases
@dtypes
def test_fp8(name: str, dtype: torch.dtype) -> None:
    weight = make(name, dtype)
    scale = weight.abs().amax().float() / 448
    theirs, _ = oracles.FP8QTensor.quantize(weight.clone(), scales=scale)
    ours = formats.get("FP8").encode(weight)
    same_bytes(ours["weight"], theirs._quantized_data)
    same_bytes(ours["weight_scale"], scale)


def test_fp8_rounds_twice() -> None:
    weight = make("normal", torch.bfloat16)
    ours = formats.get("FP8").encode(weight)
    once = (weight.float() / ours["weight_scale"]).to(torch.float8_e4m3fn)
    assert (ours["weight"].view(torch.uint8) != once.view(torch.uint8)).sum() > 0


@pytest.mark.parametrize("name", [name for name in MAKERS if name not in ("zero_blocks", "one_value")])
@dtypes
def test_fp8_per_channel(name: str, dtype: torch.dtype) -> None:
    weight = make(name, dtype)
    scale = weight.abs().amax(dim=1).float() / 448
    theirs, _ = oracles.FP8QTensor.quantize(weight.clone(), scales=scale.unsqueeze(1))
    ours = formats.get("FP8_PER_CHANNEL_PER_TOKEN").encode(weight)
    same_bytes(ours["weight"], theirs._quantized_data)
    same_bytes(ours["weight_scale"], scale)


@cases
@dtypes
@pytest.mark.parametrize("shape", [(128, 256), (100, 256), (128, 200), (97, 131)])
def test_fp8_block(name: str, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    weight = make(name, dtype)[: shape[0], : shape[1]].contiguous()
    padded = torch.nn.functional.pad(weight.float(), (0, -shape[1] % 128, 0, -shape[0] % 128))
    amax = padded.view(-1, 128, padded.shape[1] // 128, 128).abs().amax(dim=(1, 3))
    scale = torch.where(amax == 0, 448.0, amax) / 448
    theirs, _ = oracles.FP8QTensor.quantize(
        weight.clone(), scales=scale.clone(), block_sizes={-1: 128, -2: 128}
    )
    ours = formats.get("FP8_PB_WO").encode(weight)
    same_bytes(ours["weight"], theirs._quantized_data)
    same_bytes(ours["weight_scale"].squeeze(-1).squeeze(-2), scale)


@pytest.mark.parametrize("name", ["NVFP4", "MXFP8", "MXFP4", "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO"])
@dtypes
def test_a_stack_is_its_matrices(name: str, dtype: torch.dtype) -> None:
    number = formats.get(name)
    weight = torch.stack([make(each, dtype) for each in ("normal", "heavy_tailed", "ties")])
    stack = number.encode(weight)
    assert stack.shape == (3, 128, 256)
    for index, matrix in enumerate(weight):
        alone = number.encode(matrix)
        for suffix, tensor in stack.expert(index).items():
            same_bytes(tensor, alone[suffix])


def test_decoding_gives_modelopts_values() -> None:
    weight = make("heavy_tailed", torch.bfloat16)
    theirs, scale, scale_2 = oracles.NVFP4QTensor.quantize(weight.clone(), 16)
    values = theirs.dequantize(torch.float32, scale=scale, double_scale=scale_2, block_sizes={-1: 16})
    assert torch.equal(formats.get("NVFP4").decode(formats.get("NVFP4").encode(weight)), values)
    eight, exponent = oracles.MXFP8QTensor.quantize(weight.clone())
    for dtype in DTYPES[:2]:
        ours = formats.get("MXFP8").decode(formats.get("MXFP8").encode(weight), dtype)
        assert torch.equal(ours, eight.dequantize(dtype, scale=exponent))
    four, exponent = oracles.MXFP4QTensor.quantize(weight.clone(), 32)
    values = four.dequantize(torch.float32, scale=exponent, block_sizes={-1: 32})
    assert torch.equal(formats.get("MXFP4").decode(formats.get("MXFP4").encode(weight)), values)
