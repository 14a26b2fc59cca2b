"""Products with wide tiles of x without a GPU: what they compute on small shapes."""

import importlib.util

import pytest

from tests.kernels.interpreting import printed

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)


def test_what_wide_tiles_compute_on_small_shapes():
    errors = printed("-m", "tests.kernels.wide_interpreted")
    assert len(errors) == 6
    assert not {name: error for name, error in errors.items() if not error < 3e-5}
