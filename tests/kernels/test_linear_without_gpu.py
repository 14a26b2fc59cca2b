"""The register kernels of products without a GPU: they compile for sm_90 through their own launches, and the
plan keeps a matrix's bits apart from the count of rows.
"""

import importlib.util

import pytest
import torch

from intarsia import formats
from intarsia.formats.stored import Stored
from intarsia.kernels.linear import gluon, plan
from tests.kernels.assembly import overwritten
from tests.kernels.interpreting import printed

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)

CASES = [
    ("MXFP8", (8192, 8192, 8192), 4096, 16),
    ("MXFP8", (4096,), 8192, 8),
    ("MXFP8", (8192, 8192, 8192), 4096, 32),
    ("MXFP8", (4096,), 8192, 32),
    ("MXFP8", (24576,), 4096, 2048),
    ("MXFP8", (4096,), 8192, 2048),
    ("FP8_PB_WO", (16384,), 1536, 8),
    ("FP8_PB_WO", (4096,), 16384, 32),
    ("FP8_PB_WO", (16384,), 1536, 2048),
    ("BF16", (64, 128, 128), 4096, 16),
    ("BF16", (64, 128, 128), 4096, 2048),
    ("BF16", (4096,), 8192, 2048),
    ("BF16", (8200,), 128, 64),
]


@pytest.fixture
def compiled(monkeypatch):
    """Compilers in the places of the kernels: name -> what the launches would run on sm_90."""
    from intarsia.kernels.linear import arrange, gluon_few, gluon_many, gluon_wide
    from tests.kernels.ahead_of_time import Compiled

    stand_ins = {}
    for module, name in (
        (gluon_few, "few_rows"),
        (gluon_many, "many_rows"),
        (gluon_wide, "wide_rows"),
        (arrange, "arrange_rows"),
        (arrange, "add_parts"),
    ):
        stand_ins[name] = Compiled(getattr(module, name))
        monkeypatch.setattr(module, name, stand_ins[name])
    return stand_ins


def empty(name: str, *shape: int) -> Stored:
    """A stored weight without memory."""
    specs = formats.get(name).layout(shape)
    tensors = {key: torch.empty(spec.shape, dtype=spec.dtype, device="meta") for key, spec in specs.items()}
    return Stored(name, tensors, shape)


def rows_of(count: int, width: int, dtype=torch.bfloat16):
    return torch.empty(count, width, dtype=dtype, device="meta")


def built(compiled) -> dict[str, dict[str, int]]:
    from tests.kernels.ahead_of_time import usage

    assert all(len(one.built) <= 1 for one in compiled.values())
    return {name: usage(one.built[0]) for name, one in compiled.items() if one.built}


@pytest.mark.parametrize(("name", "sizes", "columns", "rows"), CASES)
def test_products_compile_to_tensor_core_code_without_spills(compiled, name, sizes, columns, rows):
    weights = [empty(name, size, columns) for size in sizes]
    outs = [rows_of(rows, size, torch.float32 if i == 0 else torch.bfloat16) for i, size in enumerate(sizes)]
    gluon.launch([rows_of(rows, columns)], weights, outs)
    used = built(compiled)
    # The largest tiles keep a few numbers that their loops do not change in memory.
    largest = max(kernel["stack"] for kernel in used.values())
    assert largest <= (64 if rows > 256 else 0)
    shape = plan.shape(plan.ranges_of(sum(sizes), columns), sum(sizes), columns, rows, name)
    if isinstance(shape, plan.Few):
        assert set(used) == {"few_rows"}
        assert used["few_rows"]["HMMA"] > 0
    elif isinstance(shape, plan.Wide):
        assert set(used) == {"wide_rows", "arrange_rows"}
        assert used["wide_rows"]["HGMMA"] > 0
        assert used["wide_rows"]["shared"] <= 232_448
        assert not overwritten(compiled["wide_rows"].built[0])
    else:
        assert set(used) == {"many_rows", "arrange_rows"} | ({"add_parts"} if shape.apart else set())
        assert used["many_rows"]["HGMMA"] > 0
        assert not overwritten(compiled["many_rows"].built[0])


@pytest.mark.parametrize(
    ("name", "both", "rows"),
    [
        ("FP8_PB_WO", 4096, 16),
        ("FP8_PB_WO", 4096, 64),
        ("FP8_PB_WO", 4096, 128),
        ("FP8_PB_WO", 4096, 2048),
        ("FP8_PB_WO", 24576, 32),  # one range, and half tiles narrower than what is swizzled
        ("MXFP8", 24576, 16),
        ("MXFP8", 24576, 64),
        ("MXFP8", 24576, 2048),
    ],
)
def test_a_swiglu_compiles_with_a_count_of_used_rows(compiled, name, both, rows):
    used = torch.empty(1, dtype=torch.int32, device="meta")
    weight = empty(name, both, 4096)
    gluon.launch([rows_of(rows, 4096)], [weight], [rows_of(rows, both // 2)], used=used, limit=10.0)
    assert all(kernel["stack"] <= (64 if rows > 256 else 0) for kernel in built(compiled).values())


def test_blocks_of_a_diagonal_compile(compiled):
    weights = [empty("BF16", 8192, 128) for _ in range(2)]
    xs = [rows_of(8, 128) for _ in range(2)]
    gluon.launch(xs, weights, [rows_of(8, 8192) for _ in range(2)])
    assert built(compiled)["few_rows"]["stack"] == 0


def test_the_plan_fits_every_matrix_it_takes():
    """Ranges are whole steps, and what depends on rows divides them as the kernels ask."""
    for size in (16, 40, 64, 512, 2048, 4096, 8192, 16384, 24576, 154880):
        for columns in (128, 256, 384, 1536, 2048, 4096, 8192, 12288, 16384):
            ranges = plan.ranges_of(size, columns)
            assert ranges in (1, 2, 4, 8)
            assert columns % (ranges * plan.STEP) == 0
            for each in (1, 2):
                for count in (8, 16):
                    shape = plan.few(ranges, size, columns, each, count)
                    assert columns * each // ranges % (64 * shape.chunks * shape.depth) == 0
            for rows in (9, 16, 17, 32, 33, 64, 65, 128, 129, 256, 257, 2048):
                for form in ("MXFP8", "FP8_PB_WO", "BF16"):
                    wide = plan.many(ranges, size, columns, rows, form)
                    steps = columns // ranges // plan.STEP
                    assert ranges == 1 or wide.apart or steps % wide.stages == 0
                    assert wide.stages > 1
    assert plan.ranges_of(4096, 192) == 0


def test_weights_in_unusual_memory_are_refused_with_a_reason():
    whole = formats.get("FP8_PB_WO").encode(torch.randn(256, 256, generator=torch.Generator().manual_seed(0)))
    assert gluon.unlike_a_whole_matrix(whole) == ""
    part = formats.get("FP8_PB_WO").cut(whole, range(64, 256), range(256)).clone()
    assert "inside a block" in gluon.unlike_a_whole_matrix(part)
    columns = formats.get("FP8_PB_WO").cut(whole, range(256), range(128))
    assert "gaps" in gluon.unlike_a_whole_matrix(columns)
    mx = formats.get("MXFP8").encode(torch.randn(32, 128, generator=torch.Generator().manual_seed(0)))
    assert gluon.unlike_a_whole_matrix(mx) == ""
    scale = torch.full_like(mx["weight_scale"], 135)
    large = Stored("MXFP8", {"weight": mx["weight"], "weight_scale": scale}, mx.shape)
    assert "exponent" in gluon.unlike_a_whole_matrix(large)


def test_what_the_kernels_compute_on_small_shapes():
    """Addresses, orders and tiles, on what stands in for Gluon."""
    errors = printed("-m", "tests.kernels.linear_interpreted")
    assert len(errors) == 12
    assert not {name: error for name, error in errors.items() if not error < 3e-5}
