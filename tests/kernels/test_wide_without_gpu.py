"""Products with wide tiles of x without a GPU: they compile for sm_90 without spills, write over nothing that
a product on its way reads, and compute on small shapes what they should.
"""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
import torch

from intarsia.kernels.linear import plan
from tests.kernels.assembly import overwritten
from tests.kernels.test_linear_without_gpu import empty, rows_of

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)


@pytest.mark.parametrize(
    ("name", "size", "columns", "limit"),
    [
        ("MXFP8", 24576, 4096, None),
        ("MXFP8", 4096, 8192, None),
        ("FP8_PB_WO", 4096, 16384, None),
        ("FP8_PB_WO", 4096, 4096, 10.0),
        ("BF16", 4096, 8192, None),
    ],
)
def test_wide_tiles_compile_without_spills(monkeypatch, name, size, columns, limit):
    from intarsia.kernels.linear import gluon_wide
    from intarsia.kernels.linear.launch_wide import launch_wide
    from tests.kernels.ahead_of_time import Compiled, usage

    compiled = Compiled(gluon_wide.wide_rows)
    monkeypatch.setattr(gluon_wide, "wide_rows", compiled)
    ranges = plan.ranges_of(size, columns)
    out = rows_of(2048, size // (1 if limit is None else 2), torch.bfloat16)
    shape = plan.wide(ranges, columns, name)
    launch_wide(rows_of(2048, columns), [empty(name, size, columns)], [out], limit, ranges, shape)
    (kernel,) = compiled.built
    used = usage(kernel)
    assert used["HGMMA"] > 0
    assert used["stack"] == 0
    assert used["shared"] <= 232_448
    assert not overwritten(kernel)


def test_what_wide_tiles_compute_on_small_shapes():
    command = [sys.executable, "-W", "ignore", "-m", "tests.kernels.wide_interpreted"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    errors = json.loads(run.stdout)
    assert len(errors) == 6
    assert not {name: error for name, error in errors.items() if not error < 3e-5}
