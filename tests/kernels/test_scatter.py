"""Scattering bytes: in Triton's interpreter, by compiling, and on a GPU."""

import importlib.util

import numpy as np
import pytest
import torch

from intarsia.kernels import scatter as operation
from tests.kernels.interpreting import interpreted
from tests.kernels.scatter_interpreted import fine

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")


@needs_triton
def test_in_the_interpreter_every_byte_finds_its_place():
    assert interpreted("tests.kernels.scatter_interpreted") is True


@needs_triton
def test_it_compiles_without_spills(monkeypatch):
    from intarsia.kernels.scatter import triton_scatter
    from tests.kernels.ahead_of_time import Compiled, usage

    kernel = Compiled(triton_scatter.scatter_bytes)
    monkeypatch.setattr(triton_scatter, "scatter_bytes", kernel)
    monkeypatch.setattr(operation, "scatters", lambda device: True)
    operation.scatter(torch.empty(64, dtype=torch.uint8), np.array([[0, 4096, 64]]))
    assert usage(kernel.built[0])["stack"] == 0


def test_on_a_cpu_every_byte_finds_its_place():
    assert not operation.scatters(torch.device("cpu"))
    assert fine()


def test_rows_of_a_table_are_the_parts_cut_small():
    place, address, count = np.array([[3, 1000, 1], [7, 2000, 2 * operation.CHUNK + 5]]).T
    rows, part = operation.table(place, address, count)
    chunk = operation.CHUNK
    assert rows.tolist() == [
        [3, 1000, 1],
        [7, 2000, chunk],
        [7 + chunk, 2000 + chunk, chunk],
        [7 + 2 * chunk, 2000 + 2 * chunk, 5],
    ]
    assert part.tolist() == [0, 1, 1, 1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_every_byte_finds_its_place():
    assert fine("cuda")
    assert fine("cuda", torch.empty((200, 3), dtype=torch.int64, pin_memory=True))
