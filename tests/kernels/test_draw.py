"""The draw's kernels without a GPU: their integers in Triton's interpreter, and what they compile to."""

import importlib
import importlib.util
import re
import struct

import pytest
import torch

from intarsia.kernels.draw import takes
from tests.kernels.interpreting import interpreted

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)

# Of the series and its range reduction; as float32 they would be other numbers.
CONSTANTS = (0.7071067811865476, 2.8853900817779268, 1 / 17, 1 / 3, 2.0**-52)
POINTERS = {"scales": "*fp64", "top_ps": "*fp64", "logits": "*fp32", "peaks": "*fp32"}
NUMBERS = dict.fromkeys(
    ["row_stride", "count", "first_id", "tiles", "step", "steps", "shift", "rows", "certain_k"], "i32"
)
SEARCH = {"IDS": 18, "SUMS": 512, "OVERLAP": True}


def test_integers_are_those_of_the_torch_form():
    assert interpreted("tests.kernels.interpreted_draw") == []


def assembly(module: str, name: str, size: dict[str, int], warps: int = 4, limits: str = "*i64") -> str:
    """The kernel for sm_90, with the options of its launch."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource

    kernel = getattr(importlib.import_module(f"intarsia.kernels.draw.{module}"), name)
    size = {arg: value for arg, value in size.items() if arg in kernel.arg_names}
    pointers = POINTERS | {"limits": limits}
    kinds = {arg: pointers.get(arg) or NUMBERS.get(arg) or "*i64" for arg in kernel.arg_names}
    source = ASTSource(kernel, kinds | dict.fromkeys(size, "constexpr"), size)
    options = {"num_warps": warps, "enable_fp_fusion": False}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]


def test_no_two_operations_are_fused_and_no_constant_is_rounded():
    code = assembly("triton_draw", "noisy_tiles", {"TILE": 1024})
    code += assembly("triton_draw", "mass_of_tiles", {"TILE": 1024})
    assert "fma" not in code
    assert "div.full" not in code
    assert "approx" not in code
    for value in CONSTANTS:
        assert f"0d{struct.pack('>d', value).hex().upper()}" in code, value
    assert len(re.findall(r"mul\.hi\.u32", code)) >= 2 * 10
    assert assembly("triton_draw", "best_of_tiles", {"TILES": 256})


def test_searches_compile_to_operations_that_are_not_fused():
    sizes = {"TILE": 512, "TILES": 256, **SEARCH}
    code = assembly("triton_search", "noisy_allowed", sizes)
    for mass, limits in ((False, "*i64"), (True, "*fp64")):
        for name in ("search_tiles", "end_search"):
            code += assembly("triton_search", name, sizes | {"MASS": mass}, 1, limits)
    assert "fma" not in code
    for value in CONSTANTS:
        assert f"0d{struct.pack('>d', value).hex().upper()}" in code, value
    pick = {"COUNT": 256, "UNCERTAIN": -2, "OVERLAP": True}
    for cut in (False, True):
        code += assembly("triton_pick", "pick_of_rows", pick | {"CUT": cut})
    assert "fma" not in code
    for name in ("likeliest_of_tiles", "likeliest_of_rows", "drawn_of_rows"):
        assert assembly("triton_search", name, sizes)
    for name in ("offer_of_rows", "best_offer"):
        assert assembly("triton_offers", name, {"ROWS": 32, "RANKS": 2, "OVERLAP": True})


def test_a_cpu_draws_by_the_torch_form():
    assert not takes(torch.zeros(1, 3))
