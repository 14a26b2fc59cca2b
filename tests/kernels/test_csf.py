"""Compressed scales expanded on a GPU, without one: in Triton's interpreter, and by compiling."""

import importlib.util

import pytest
import torch

from intarsia.kernels.choice import Case
from intarsia.kernels.csf import Batch, fits, launch
from tests.kernels.csf_interpreted import CODECS
from tests.kernels.interpreting import interpreted

has_triton = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not has_triton, reason="needs triton")


@needs_triton
def test_in_the_interpreter_scales_are_right_and_broken_rules_noted():
    held = interpreted("tests.kernels.csf_interpreted")
    assert len(held) > 20
    assert [case for case, fine in held.items() if not fine] == []


@needs_triton
@pytest.mark.parametrize("codec", CODECS)
def test_the_expansion_compiles_without_spills(monkeypatch, codec):
    from intarsia.kernels.csf import triton_csf
    from tests.kernels.ahead_of_time import Compiled, usage

    name = launch.LAYOUTS[codec].kernel
    kernel = Compiled(getattr(triton_csf, name))
    monkeypatch.setattr(triton_csf, name, kernel)
    Batch(codec, torch.empty(1, 2048, 256, dtype=torch.uint8), [0], [1500]).expand()
    assert usage(kernel.built[0])["stack"] == 0


def test_a_refusal_says_what_is_needed():
    def refuse(codec, shape):
        return launch.refuse(Case("csf_expand", (codec,), torch.uint8, torch.device("cuda"), shape))

    assert "no kernel for mxfp4_slab" in refuse("mxfp4_slab", (32, 16))
    assert "whole bands of 16" in refuse("nvfp4_slab", (24, 16))
    assert "whole bands of 32" in refuse("csf_32x2_v1", (48, 16))
    assert refuse("csf_32x2_v1", (64, 16)) == ""


@pytest.mark.parametrize(
    ("held", "fine"),
    [
        ([("U8", (2, 16 * 9)), ("U32", (5,))], True),
        ([("U8", (2 * 16 * 9,)), ("U32", (5,))], True),
        ([("U8", (2, 16 * 8)), ("U32", (5,))], False),
        ([("I8", (2, 16 * 9)), ("U32", (5,))], False),
        ([("U8", (2, 16 * 9)), ("I32", (5,))], False),
        ([("U8", (2, 16 * 9)), ("U32", (5, 1))], False),
    ],
)
def test_only_components_of_the_right_form_are_taken_together(held, fine):
    assert fits("nvfp4_slab", 32, 16, held) == fine
