"""The draw's kernels without a GPU: their integers in Triton's interpreter, and what they compile to."""

import importlib.util
import json
import os
import re
import struct
import subprocess
import sys

import pytest
import torch

from intarsia.kernels.draw import takes

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)

# Of the series and its range reduction; as float32 they would be other numbers.
CONSTANTS = (0.7071067811865476, 2.8853900817779268, 1 / 17, 1 / 3, 2.0**-52)
POINTERS = {"scales": "*fp64", "logits": "*fp32", "peaks": "*fp32"}
NUMBERS = {"row_stride": "i32", "count": "i32", "first_id": "i32", "tiles": "i32"}


def test_integers_are_those_of_the_torch_form():
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.kernels.interpreted_draw"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout) == []


def assembly(name: str, size: dict[str, int]) -> str:
    """The kernel for sm_90, with the options of its launch."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource

    from intarsia.kernels.draw import triton_draw

    kernel = getattr(triton_draw, name)
    kinds = {arg: POINTERS.get(arg) or NUMBERS.get(arg) or "*i64" for arg in kernel.arg_names}
    source = ASTSource(kernel, kinds | dict.fromkeys(size, "constexpr"), size)
    options = {"num_warps": 4, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]


def test_no_two_operations_are_fused_and_no_constant_is_rounded():
    code = assembly("noisy_tiles", {"TILE": 1024}) + assembly("mass_of_tiles", {"TILE": 1024})
    assert "fma" not in code
    assert "div.full" not in code
    assert "approx" not in code
    for value in CONSTANTS:
        assert f"0d{struct.pack('>d', value).hex().upper()}" in code, value
    assert len(re.findall(r"mul\.hi\.u32", code)) >= 2 * 10
    assert assembly("best_of_tiles", {"TILES": 256})


def test_a_cpu_draws_by_the_torch_form():
    assert not takes(torch.zeros(1, 3))
