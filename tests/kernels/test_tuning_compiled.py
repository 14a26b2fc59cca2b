"""Candidates compile for sm_90 through the products' own launches, on a machine without a GPU."""

import importlib.util

import pytest

from intarsia.kernels.tuning import configurations, trying
from intarsia.models.glm5_next.products import Product

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)

from intarsia.kernels.linear import gluon, plan
from tests.kernels.test_linear_without_gpu import built, compiled, empty, rows_of

__all__ = ["compiled"]  # the fixture

WORKS = {
    "MXFP8 in eight ranges": (Product("MXFP8", (4096,), 8192, "together"), 8),
    "FP8 blocks, SwiGLU": (Product("FP8_PB_WO", (4096,), 4096, "swiglu"), 16),
    "BF16, more rows": (Product("BF16", (1024,), 512, "together"), 64),
    "MXFP8, a prompt": (Product("MXFP8", (24576,), 4096, "swiglu"), 1024),
}


@pytest.mark.parametrize("name", WORKS)
def test_candidates_unlike_the_default_compile(compiled, name):
    """One from the middle of the table and its last."""
    work, rows = WORKS[name]
    site = work.site(rows)
    candidates = configurations(site.operation).candidates(site)
    weights = [empty(work.form, size, work.columns) for size in work.sizes]
    gated = work.kind == "swiglu"
    for one in (candidates[len(candidates) // 2], candidates[-1]):
        for compiler in compiled.values():
            compiler.built.clear()
        outs = [rows_of(rows, size // 2 if gated else size) for size in work.sizes]
        with trying(site, one):
            gluon.launch([rows_of(rows, work.columns)], weights, outs, limit=10.0 if gated else None)
        used = built(compiled)
        name = {plan.Few: "few_rows", plan.Many: "many_rows", plan.Wide: "wide_rows"}[type(one)]
        assert used[name]["shared"] <= 232448
