"""The GPU encoders without a GPU: their bytes in Triton's interpreter, their code by compiling."""

import importlib.util

import pytest
import torch

from intarsia import formats
from intarsia.formats.errors import UnencodableError
from intarsia.kernels.choice import Case
from intarsia.kernels.encode import encode, launch
from tests.kernels.encode_interpreted import NAMES
from tests.kernels.interpreting import interpreted
from tests.kernels.steps import randn

has_triton = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not has_triton, reason="needs triton")


@needs_triton
def test_in_the_interpreter_every_byte_is_that_of_the_formats():
    differences = interpreted("tests.kernels.encode_interpreted")
    assert len(differences) > 30
    assert {case: found for case, found in differences.items() if found} == {}


@needs_triton
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_encoders_compile_without_spills(monkeypatch, dtype):
    from intarsia.kernels.encode import triton_encode
    from tests.kernels.ahead_of_time import Compiled, usage

    names = ("encode_mxfp8", "largest_magnitude", "encode_nvfp4", "encode_fp8_blocks")
    built = [Compiled(getattr(triton_encode, name)) for name in names]
    for name, stand_in in zip(names, built, strict=True):
        monkeypatch.setattr(triton_encode, name, stand_in)
    weight = torch.empty(4096, 4096, dtype=dtype, device="meta")
    monkeypatch.setattr(
        launch, "ceil_log2_carry", lambda device: torch.empty(256, dtype=torch.int32, device="meta")
    )
    for name in NAMES:
        launch.launch(name, weight, None, torch.empty((), dtype=torch.bool, device="meta"))
    for kernel in built:
        assert usage(kernel.built[0])["stack"] == 0


def test_on_a_cpu_the_formats_encode():
    weight = randn(8, 64, seed=1)
    for name in ("MXFP8", "NVFP4", "FP8"):
        expected = formats.get(name).encode(weight)
        for suffix, tensor in encode(name, weight).tensors.items():
            assert torch.equal(tensor.float(), expected.tensors[suffix].float())
    weight[3, 5] = torch.nan
    with pytest.raises(UnencodableError, match="row 3, column 5"):
        encode("MXFP8", weight)


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "part"),
    [
        ("MXFP4", torch.bfloat16, (4, 64), "no encoder for MXFP4"),
        ("MXFP8", torch.int8, (4, 64), "a weight of int8"),
        ("NVFP4", torch.bfloat16, (4, 40), "whole groups of 16"),
        ("NVFP4", torch.bfloat16, (64,), "shape [64]"),
    ],
)
def test_a_refusal_says_what_is_needed(name, dtype, shape, part):
    assert part in launch.refuse(Case("encode", (name,), dtype, torch.device("cuda"), shape))
