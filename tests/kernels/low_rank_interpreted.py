"""Beta, decay and gate by ranges on a small shape, on what stands in for Gluon: run as a program.

Prints one JSON object: case -> the largest error relative to the reference's largest value. Bits are for a
GPU to show.
"""

import importlib
import json
import sys

import torch

from intarsia.kernels.kda import low_rank
from tests.kernels import linear_interpreted
from tests.kernels.steps import error, randn

HEADS, HIDDEN, ROWS, REAL = 16, 1024, 3, 2


def load_kernels() -> None:
    """The kernels' modules, with stand-ins for what they import."""
    linear_interpreted.load_kernels()
    found = linear_interpreted.modules()
    experimental = importlib.import_module("triton.experimental")
    real = {name: importlib.import_module(name) for name in found}
    sys.modules.update(found)
    experimental.gluon = found["triton.experimental.gluon"]
    try:
        loaded = [importlib.import_module(f"intarsia.kernels.kda.gluon_{name}") for name in ("low", "gates")]
    finally:
        sys.modules.update(real)
        experimental.gluon = real["triton.experimental.gluon"]
    for module in loaded:
        module.gdc_wait = module.gdc_launch_dependents = lambda: None


def errors() -> dict[str, float]:
    """Rows of which the last only pads."""
    sizes = [(HEADS, HIDDEN), (128, HIDDEN), (128, HIDDEN), (HEADS * 128, 128), (HEADS * 128, 128)]
    w = low_rank.Matrices(*[(0.1 * randn(*size, seed=i)).bfloat16() for i, size in enumerate(sizes)])
    x = randn(ROWS, HIDDEN, seed=9).bfloat16()
    expected = [x.float() @ matrix.float().T for matrix in w[:3]]
    pairs = zip(expected[1:], (w.f_b, w.g_b), strict=True)
    expected[1:] = [low.bfloat16().float() @ matrix.float().T for low, matrix in pairs]
    x[REAL:] = torch.nan
    found = low_rank.launch_by_ranges(x, w, torch.tensor([REAL], dtype=torch.int32))
    result = {}
    for name, got, whole in zip(("beta", "decay", "gate"), found, expected, strict=True):
        result[name] = torch.inf if (got[REAL:] != 0).any() else error(got[:REAL], whole[:REAL])
    return result


if __name__ == "__main__":
    torch.set_num_threads(1)
    load_kernels()
    print(json.dumps(errors()))
