"""The Triton kernels of latent attention and its indexer without a GPU: values in the interpreter, code by
compiling.
"""

import importlib.util

import pytest
import torch

from intarsia.kernels.mla import IndexKeys, Latents
from intarsia.kernels.rows import Rows
from tests.kernels.attention_interpreted import cases
from tests.kernels.interpreting import interpreted

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)

# Float32 sums in another order; bfloat16 rounds outputs, and the weights of latents.
TOLERANCES = {"float32": 2e-6, "bfloat16": 1e-2, "exact": 0.0}
HEADS, KEY, VALUE, LATENT, SLOTS, PAGE = 64, 256, 256, 512, 2051, 512


@pytest.fixture(scope="module")
def errors():
    """Every case's error, from one process."""
    return interpreted("tests.kernels.attention_interpreted")


@pytest.mark.parametrize("case", cases())
def test_a_kernel_gives_what_the_reference_gives(errors, case):
    assert errors[case] <= TOLERANCES[case.split()[-1]]


@pytest.fixture
def compiled(monkeypatch):
    """Puts compilers in the places of kernels: names of a module -> what launches would run on sm_90."""
    from tests.kernels.ahead_of_time import Compiled

    def replace(module, *names):
        stand_ins = [Compiled(getattr(module, name)) for name in names]
        for name, stand_in in zip(names, stand_ins, strict=True):
            monkeypatch.setattr(module, name, stand_in)
        return stand_ins

    return replace


def numbers(*shape: int, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype, device="meta")


def meta_rows(count: int, segments: int, recurrent: int, pages: int = 64) -> Rows:
    whole = [numbers(size, dtype=torch.int32) for size in (count, count, segments + 1)]
    table = numbers(8, pages, dtype=torch.int32)
    return Rows(numbers(count, dtype=torch.int64), *whole, table, recurrent)


def usage(built) -> dict[str, int]:
    from tests.kernels import ahead_of_time

    return ahead_of_time.usage(built)


def used_by(kernel) -> dict[str, int]:
    return usage(kernel.built[0])


def test_attention_compiles_to_tensor_core_code(compiled):
    from intarsia.kernels.mla import launch, triton_attend

    few, add, many = compiled(triton_attend, "attend_ranges", "add_ranges", "attend_rows")
    rows = meta_rows(16, 8, 4)
    selected = numbers(16, SLOTS, dtype=torch.int32)
    launch.attend(numbers(16, HEADS, LATENT), numbers(9, PAGE, LATENT), selected, rows, KEY**-0.5)
    # A few registers too many by ptxas of Triton 3.6; what it puts on the stack stays in the first cache.
    assert used_by(few)["stack"] <= 128
    assert used_by(many)["stack"] <= 32
    assert used_by(add)["stack"] == 0
    for kernel in (few, many):
        assert used_by(kernel)["HGMMA"] > 0


def test_attention_for_hopper_compiles(compiled):
    from intarsia.kernels.mla import gluon_attend, launch, triton_attend

    (tiles,) = compiled(gluon_attend, "attend_tiles")
    (add,) = compiled(triton_attend, "add_ranges")
    case = numbers(16, HEADS, LATENT), numbers(9, PAGE, LATENT), numbers(16, SLOTS, dtype=torch.int32)
    launch.attend(*case, meta_rows(16, 8, 4), KEY**-0.5, name="gluon")
    assert (len(tiles.built), len(add.built)) == (2, 1)
    for kernel in tiles.built:
        used = usage(kernel)
        # What little ptxas of Triton 3.6 puts on the stack lies outside the loop over tiles.
        assert used["stack"] <= 64
        assert used["HGMMA"] >= 36, "32 products of scores and 4 of sums a tile"
        assert used["LDGSTS"] >= 48
        # Places are read once for all tiles: reads that wait for each other took more than half of a tile.
        assert used["LDG"] <= 24


def test_attention_of_few_rows_for_hopper_compiles(compiled):
    from intarsia.kernels.mla import gluon_few, launch, triton_attend

    scores, sums = compiled(gluon_few, "score_latents", "sum_ranges")
    compiled(triton_attend, "add_ranges")
    case = numbers(1, HEADS, LATENT), numbers(9, PAGE, LATENT), numbers(1, SLOTS, dtype=torch.int32)
    for early in (True, False):
        launch.attend(*case, meta_rows(1, 1, 1), KEY**-0.5, name="gluon", early=early)
    for kernel in (*scores.built, *sums.built):
        assert usage(kernel)["stack"] == 0
    assert used_by(scores)["HGMMA"] == 32
    assert used_by(sums)["HGMMA"] == 4


def test_latents_in_fp8_compile(compiled):
    from intarsia.kernels.mla import launch, triton_attend

    kernels = compiled(triton_attend, "attend_ranges", "add_ranges", "attend_rows")
    cache, scales = numbers(9, PAGE, LATENT, dtype=torch.float8_e4m3fn), numbers(9, PAGE, dtype=torch.float32)
    selected = numbers(16, SLOTS, dtype=torch.int32)
    launch.attend(numbers(16, HEADS, LATENT), cache, selected, meta_rows(16, 8, 4), KEY**-0.5, scales)
    assert [len(kernel.built) for kernel in kernels] == [1, 1, 1]


@pytest.mark.parametrize("rows", [64, 1024])
def test_products_of_heads_compile_to_tensor_core_code(compiled, rows):
    from intarsia.kernels.mla import products, triton_heads

    kernels = compiled(triton_heads, "absorb_rows", "expand_rows")
    kv_b = numbers(HEADS * (KEY + VALUE), LATENT)
    products.absorb(numbers(rows, HEADS, KEY), kv_b, KEY, VALUE)
    products.expand(numbers(rows, HEADS, LATENT), kv_b, KEY, VALUE)
    for kernel in kernels:
        used = used_by(kernel)
        assert used["stack"] == 0
        assert used.get("HGMMA", 0) + used.get("HMMA", 0) > 0


def test_products_of_heads_for_few_rows_compile(compiled):
    from intarsia.kernels.mla import products, triton_heads_few
    from intarsia.kernels.mla.case import Ranges

    kernels = compiled(triton_heads_few, "absorb_few", "expand_few")
    kv_b = numbers(HEADS * (KEY + VALUE), LATENT)
    products.absorb(numbers(16, HEADS, KEY), kv_b, KEY, VALUE)
    products.expand(numbers(16, HEADS, LATENT), kv_b, KEY, VALUE)
    parts = [numbers(2, HEADS, 8, width, dtype=torch.float32) for width in (LATENT, 2)]
    ranges = Ranges(*parts, meta_rows(2, 2, 2))
    products.expand_ranges(ranges, torch.bfloat16, kv_b, KEY, VALUE)
    for built in (built for kernel in kernels for built in kernel.built):
        used = usage(built)
        assert used["stack"] == 0
        assert used["HMMA"] >= 16


@pytest.mark.parametrize("cache", [torch.bfloat16, torch.float8_e4m3fn])
def test_entering_rows_compiles(compiled, cache):
    from intarsia.kernels.mla import entry, triton_entry

    (kernel,) = compiled(triton_entry, "enter_rows")
    query, latent, keys, gates = numbers(16, 1536 + LATENT + 256).split([1536, LATENT, 128, 128], -1)
    scales = None if cache == torch.bfloat16 else numbers(9, PAGE, dtype=torch.float32)
    latents = numbers(9, PAGE, LATENT, dtype=cache)
    entry.launch(
        Latents(query, latent, numbers(1536), numbers(LATENT), 1e-5, latents, scales),
        IndexKeys(
            keys,
            gates,
            numbers(128),
            numbers(128),
            1e-6,
            numbers(4, 128),
            numbers(8, 7, 256),
            numbers(9, PAGE // 4, 128),
        ),
        meta_rows(16, 8, 8),
    )
    assert used_by(kernel)["stack"] == 0


@pytest.mark.parametrize("pages", [64, 2048])
def test_the_indexer_compiles(compiled, pages):
    """A window of one chunk of pools, and one of several."""
    from intarsia.kernels.indexer import launch, triton_score, triton_select

    (score,) = compiled(triton_score, "score_tiles")
    chunks, kept = compiled(triton_select, "select_chunks", "select_kept")
    rows = meta_rows(16, 8, 8, pages)
    weights = numbers(16, 32, dtype=torch.float32)
    launch.launch(numbers(16, 32, 128), weights, numbers(9, PAGE // 4, 128), rows, 2048, 4)
    assert used_by(score)["stack"] == 0
    assert used_by(score)["HGMMA"] > 0
    assert used_by(chunks)["stack"] == 0
    assert len(kept.built) == (pages > 64)


def test_norms_compile(compiled):
    from intarsia.kernels.norm import launch, triton_norm

    (kernel,) = compiled(triton_norm, "norm_rows")
    launch.launch(numbers(16, 4096), numbers(4096), None, 1e-5)
    assert used_by(kernel)["stack"] == 0
