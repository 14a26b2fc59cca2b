"""The kernels of linear attention and hyper-connections, compiled for sm_90 on a machine without a GPU."""

import importlib.util
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from intarsia.formats.stored import Stored
from intarsia.kernels import hyper_connection as hyper
from intarsia.kernels.errors import KernelError
from intarsia.kernels.hyper_connection import launch as sites
from intarsia.kernels.kda import low_rank, prompt, recurrent
from intarsia.models.glm5_next.weights import KdaWeights
from tests.kernels.interpreting import printed
from tests.kernels.kda_cases import shapes
from tests.kernels.kda_cases import unallocated as numbers

if importlib.util.find_spec("triton") is None:
    pytest.skip("needs triton", allow_module_level=True)


@pytest.fixture
def usages(monkeypatch):
    """Runs a launch with compilers in the places of kernels; what each kernel would use."""
    from tests.kernels.ahead_of_time import Compiled, usage

    def run(launch, *kernels):
        stand_ins = [Compiled(getattr(module, name)) for module, name in kernels]
        for (module, name), stand_in in zip(kernels, stand_ins, strict=True):
            monkeypatch.setattr(module, name, stand_in)
        launch()
        return [usage(one) for stand_in in stand_ins for one in stand_in.built]

    return run


@pytest.mark.parametrize("name", ["gluon", "triton"])
def test_the_recurrent_step_compiles_with_hardly_a_spill(usages, name):
    from intarsia.kernels.kda import gluon_step, triton_step

    module = {"gluon": gluon_step, "triton": triton_step}[name]
    overlap = name == "gluon"
    (used,) = usages(
        lambda: recurrent.launch(name, *shapes(16, 8, 8), overlap=overlap), (module, "recurrent_rows")
    )
    if name == "gluon":
        # Two programs a multiprocessor, for which constants of a row's channels leave the registers.
        assert used["registers"] <= 128
        assert used["stack"] <= 64
        # Vectors over keys, and the norm's sum across warps: nothing else waits for other warps.
        assert used["BAR"] <= 3
    else:
        assert used["stack"] == 0


def test_many_streams_compile_without_spills(usages, monkeypatch):
    from intarsia.kernels.kda import gluon_streams

    given, weights, kept, step, out = shapes(32, 32, 32)
    kept = replace(
        kept, memory=numbers(32, 1, 64, 128, 128), window=numbers(32, 4, 24576, dtype=torch.bfloat16)
    )
    monkeypatch.setattr(recurrent, "staying", lambda memory, segments: 128)
    (used,) = usages(
        lambda: recurrent.launch("gluon", given, weights, kept, step, out, overlap=True),
        (gluon_streams, "recurrent_streams"),
    )
    assert used["stack"] == 0
    assert used["shared"] < 227 << 10


@pytest.mark.parametrize(
    ("heads", "copies", "segments", "programs"),
    [(64, 1, 32, 128), (64, 1, 3, 0), (64, 4, 32, 0), (32, 1, 32, 128), (32, 1, 8, 0), (256, 1, 32, 0)],
)
def test_programs_stay_where_there_is_enough_to_do(monkeypatch, heads, copies, segments, programs):
    monkeypatch.setattr(recurrent, "_multiprocessors", lambda device: 132)
    assert recurrent.staying(numbers(64, copies, heads, 128, 128), segments) == programs


@pytest.mark.parametrize("rows", [1, 16, 40])
def test_decay_and_gate_compile_to_tensor_core_code(usages, rows):
    from intarsia.kernels.kda import gluon_gates

    heads, width, narrow = 64, 128, torch.bfloat16
    f, g = [numbers(rows, width, dtype=narrow) for _ in "fg"]
    f_b, matrix = [numbers(heads * width, width, dtype=narrow) for _ in "fg"]
    g_b = Stored("BF16", {"weight": matrix}, (heads * width, width))
    decay, gate = [numbers(rows, heads * width, dtype=narrow) for _ in "fg"]
    count = numbers(1, dtype=torch.int32)
    (used,) = usages(lambda: low_rank.launch(f, g, f_b, g_b, decay, gate, count), (gluon_gates, "gate_rows"))
    assert used["HMMA"] == {1: 16, 16: 32, 40: 64}[rows]
    assert used["stack"] == 0
    assert used["registers"] <= 168


def test_products_of_ranges_fit_beside_those_of_whole_rows(usages):
    from intarsia.kernels.kda import gluon_gates, gluon_low

    heads, width, hidden, narrow = 32, 128, 4096, torch.bfloat16
    sizes = [
        (heads, hidden),
        (width, hidden),
        (width, hidden),
        (heads * width, width),
        (heads * width, width),
    ]
    matrices = low_rank.Matrices(*[numbers(*size, dtype=narrow) for size in sizes])
    x, count = numbers(8, hidden, dtype=narrow), numbers(1, dtype=torch.int32)
    low, gates = usages(
        lambda: low_rank.launch_by_ranges(x, matrices, count),
        (gluon_low, "low_rows"),
        (gluon_gates, "gate_rows"),
    )
    assert low["HMMA"] == 32
    assert gates["HMMA"] == 16
    assert low["stack"] == 0
    assert gates["stack"] <= 64
    # Six programs of q, k, v, of two warps and 128 registers, leave 16,384 of a multiprocessor's.
    assert 32 * low["registers"] <= 16384
    assert 128 * gates["registers"] <= 16384


def test_products_of_ranges_are_right_on_a_small_shape():
    errors = printed("-m", "tests.kernels.low_rank_interpreted")
    assert errors.keys() == {"beta", "decay", "gate"}
    assert errors["beta"] < 1e-6
    assert max(errors.values()) < 6e-3


def test_the_networks_own_weights_reach_the_kernels(usages, monkeypatch):
    """Matrices as they are stored, and what each launch hands to the next; products are left out."""
    from intarsia.kernels import choice
    from intarsia.kernels.kda import gluon_gates, gluon_step
    from intarsia.kernels.linear import gluon
    from intarsia.models.glm5_next import attention
    from intarsia.models.glm5_next.state import KdaCache

    heads, width, hidden, narrow = 4, 128, 256, torch.bfloat16
    columns = heads * width

    def stored(rows: int, size: int) -> Stored:
        return Stored("BF16", {"weight": numbers(rows, size, dtype=narrow)}, (rows, size))

    shapes_of = dict.fromkeys("qkv", (columns, hidden)) | {"b": (heads, hidden), "o": (hidden, columns)}
    shapes_of |= dict.fromkeys(("f_a", "g_a"), (width, hidden)) | dict.fromkeys(
        ("f_b", "g_b"), (columns, width)
    )
    matrices = {name: stored(*shape) for name, shape in shapes_of.items()}
    _, constants, _, rows, _ = shapes(8, 8, 8, heads=heads)
    weights = KdaWeights(
        **matrices,
        conv=constants.taps,
        a_log=constants.a_log,
        dt_bias=constants.dt_bias,
        o_norm=constants.norm,
    )
    config = SimpleNamespace(linear_lower_bound=-5.0, rms_norm_eps=1e-5)
    cache = KdaCache(
        numbers(8, 1, heads, width, width),
        numbers(8, 4, 3 * columns, dtype=narrow),
        numbers(8, dtype=torch.int32),
    )
    monkeypatch.setattr(choice, "no_gluon", lambda device: "")
    monkeypatch.setattr(gluon, "launch", lambda *_, **__: None)
    used = usages(
        lambda: attention.kda(numbers(8, hidden, dtype=narrow), weights, config, cache, rows),
        (gluon_gates, "gate_rows"),
        (gluon_step, "recurrent_rows"),
    )
    assert [one.get("HMMA", 0) > 0 for one in used] == [True, False]


def test_the_prompt_form_in_triton_compiles_to_tensor_core_code(usages):
    from intarsia.kernels.kda import triton_carry, triton_chunk, triton_parts

    _, products, solve, carry, read = usages(
        lambda: prompt.launch("triton", *shapes(128, 1, 0, width=64)),
        (triton_parts, "plan_chunks"),
        (triton_chunk, "decayed_products"),
        (triton_chunk, "solve_chunk"),
        (triton_carry, "carry_state"),
        (triton_carry, "read_chunks"),
    )
    for used in (products, solve, carry, read):
        assert used.get("HMMA", 0) + used.get("HGMMA", 0) > 0
        assert used["shared"] < 227 << 10
    assert carry["stack"] == read["stack"] == 0


def test_the_prompt_form_in_gluon_compiles_to_tensor_core_code(usages):
    from intarsia.kernels.kda import gluon_carry, gluon_terms, triton_norm, triton_parts

    _, terms, carry, norm = usages(
        lambda: prompt.launch("gluon", *shapes(128, 1, 0)),
        (triton_parts, "plan_chunks"),
        (gluon_terms, "chunk_terms"),
        (gluon_carry, "carry_state"),
        (triton_norm, "norm_chunks"),
    )
    # Two programs a multiprocessor: 65536 registers and 228 KiB of shared memory, of which each leaves one.
    assert terms["registers"] <= 128
    assert terms["shared"] <= 113 << 10
    # Operands change hands in registers, but for what the rows of a chunk share.
    assert terms["HMMA"] >= 500
    assert terms["BAR"] <= 30
    assert terms["stack"] <= 256
    # Three products in three parts, of which the state's is as wide as two: none waits for shared memory.
    assert carry["HGMMA"] == 60
    assert carry["BAR"] <= 14
    assert carry["stack"] <= 64
    assert carry["shared"] < 227 << 10
    assert norm["stack"] == 0


def test_stronger_decays_than_the_powers_allow_are_refused():
    given, weights, *rest = shapes(128, 1, 0)
    with pytest.raises(KernelError, match=r"log decays down to -5\.5"):
        prompt.launch("gluon", given, replace(weights, lower_bound=-5.5), *rest)


def test_sites_compile_to_tensor_core_code(usages):
    from intarsia.kernels.hyper_connection import triton_collect, triton_site

    rows, width = 16, 4096
    site = hyper.Site(numbers(24, 4 * width, dtype=torch.bfloat16), numbers(24), numbers(3), numbers(width))
    mix = hyper.HyperMix(numbers(rows, 4), numbers(rows, 4), numbers(rows, 4, 4))
    pending = hyper.Pending(numbers(rows, width), mix)
    streams = numbers(rows, 4, width, dtype=torch.bfloat16)
    rule = hyper.Rule(norm_eps=1e-5, eps=1e-6, iterations=20)
    kernels = [(triton_site, "update_and_measure"), (triton_collect, "collect_rows")]

    def launch():
        sites.site(streams[:, :1].expand(-1, 4, -1), None, site, rule)
        sites.site(streams, pending, site, rule)
        sites.finish(streams, pending, site.norm, 1e-5)

    used = usages(launch, *kernels, (triton_site, "finish_rows"))
    assert len(used) == 5
    # The update leaves room for a second program, for which it spills a few registers.
    assert all(one["registers"] <= 128 for one in used[:3])
    assert max(one["stack"] for one in used) <= 64
    assert all(one["HMMA"] == 32 for one in used[:2])
