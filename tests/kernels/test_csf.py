"""Compressed scales expanded on a GPU, without one: in Triton's interpreter, and by compiling."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
import torch

from intarsia.kernels.choice import Case
from intarsia.kernels.csf import Batch, launch

has_triton = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not has_triton, reason="needs triton")


@needs_triton
def test_in_the_interpreter_scales_are_right_and_broken_rules_noted():
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "tests.kernels.csf_interpreted"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    held = json.loads(done.stdout)
    assert len(held) > 20
    assert [case for case, fine in held.items() if not fine] == []


@needs_triton
def test_the_expansion_compiles_without_spills(monkeypatch):
    from intarsia.kernels.csf import triton_csf
    from tests.kernels.ahead_of_time import Compiled, usage

    kernel = Compiled(triton_csf.expand_slabs)
    monkeypatch.setattr(triton_csf, "expand_slabs", kernel)
    Batch([torch.empty(2048, 256, dtype=torch.uint8)], [1500]).expand()
    assert usage(kernel.built[0])["stack"] == 0


def test_a_refusal_says_what_is_needed():
    def refuse(codec, shape):
        return launch.refuse(Case("csf_expand", (codec,), torch.uint8, torch.device("cuda"), shape))

    assert "no kernel for csf_32x2_v1" in refuse("csf_32x2_v1", (32, 16))
    assert "no slabs" in refuse("nvfp4_slab", (24, 16))
    assert refuse("nvfp4_slab", (32, 16)) == ""
