"""Products with wide tiles of x without a GPU: what they compute on small shapes."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)


def test_what_wide_tiles_compute_on_small_shapes():
    command = [sys.executable, "-W", "ignore", "-m", "tests.kernels.wide_interpreted"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    errors = json.loads(run.stdout)
    assert len(errors) == 6
    assert not {name: error for name, error in errors.items() if not error < 3e-5}
