"""Timed operations: all run at small sizes, floors count what moves, aims and receipts follow the rows."""

from dataclasses import replace

import pytest
import torch

from intarsia.evidence.kernels import attention, encode, experts, head, hyper, kda, linear, small
from intarsia.evidence.kernels.bench import NOT_ASKED
from intarsia.evidence.kernels.caches import Caches
from intarsia.evidence.kernels.operations import GEOMETRY
from intarsia.evidence.kernels.table import Table
from intarsia.evidence.kernels.timing import L2_BYTES, Timing, in_turn
from intarsia.evidence.synthetic import geometry
from intarsia.families.glm5_next.config import Glm5NextConfig
from tests.evidence.small_kernels import RATES, cases, small_bench


@pytest.fixture(scope="module")
def published() -> Glm5NextConfig:
    return Glm5NextConfig.from_checkpoint_config(geometry(GEOMETRY))


def test_a_floor_is_what_takes_longer_bytes_or_operations():
    assert RATES.floor_us(2000, 1e6) == pytest.approx(2.0)
    assert RATES.floor_us(2000, 5e6) == pytest.approx(5.0)
    told = []
    table = Table(RATES, told.append)
    table.add("kda", "decode", 4, Timing(6.0, 5.9, 6.3, 1980, 41), moved=3000, beside={"peer": 9.0})
    assert told == table.rows
    assert table.rows[0].as_dict() == {
        "operation": "kda",
        "case": "decode",
        "rows": 4,
        "us": 6.0,
        "floor_us": pytest.approx(3.0),
        "beside": {"peer": 9.0},
        "low_us": 5.9,
        "high_us": 6.3,
        "clock_mhz": 1980,
        "temperature_c": 41,
        "ratio": pytest.approx(2.0),
    }


@pytest.mark.parametrize("size", [1 << 10, 1 << 20, 30 << 20, 500 << 20])
def test_weights_in_turn_do_not_stay_in_the_cache(size):
    count = in_turn(size)
    assert 2 <= count <= 24
    assert count == 24 or count * size > 4 * L2_BYTES


def test_the_products_are_those_of_the_published_geometry(published):
    works = {work.name: work for work in linear.works(published)}
    assert works["KDA q, k, v"].sizes == (8192, 8192, 8192)
    assert (works["KDA o"].sizes, works["KDA o"].columns) == ((4096,), 8192)
    assert works["head"].sizes == (154880,)
    assert (works["MLA q_b"].sizes, works["MLA q_b"].columns) == ((16384,), 1536)
    assert (works["MLA o"].sizes, works["MLA o"].columns) == ((4096,), 16384)
    assert works["dense gate+up"].sizes == (24576,)
    gate_up = works["shared gate+up"]
    assert gate_up.moved([], 2) == 2 * 2 * (4096 + 2048)  # only the activation is written


def test_products_run_in_their_formats_with_cublas_beside():
    bench = small_bench((1, 16, 70))
    linear.measure(bench)
    works = linear.works(bench.config)
    assert cases(bench) == {(f"{w.name} {w.form}", n) for w in works for n in (1, 16, 70)}
    for row in bench.table.rows:
        assert set(row.beside) == {linear.CUBLAS, *([linear.SOME_REAL] if row.rows == 16 else [])}
    assert bench.skipped["triton"] == NOT_ASKED
    head = next(row for row in bench.table.rows if row.case.startswith("head") and row.rows == 1)
    assert head.floor_us == pytest.approx((256 * 128 * (1 + 1 / 32) + 2 * (128 + 256)) / 1e3)


def test_experts_are_timed_whole_and_their_floor_counts_the_ones_met(published):
    bench = small_bench((1, 5))
    experts.measure(bench)
    assert cases(bench) == {(case, n) for case in (experts.CASE, "router BF16") for n in (1, 5)}
    assert "scales" in bench.skipped[experts.COMPRESSED]
    assert bench.skipped[experts.GROUPED] == NOT_ASKED
    one = 3 * 128 * 128 * (1 / 2 + 1 / 16)
    first = bench.table.rows[0]
    assert first.floor_us == pytest.approx((8 * one + 128 * 10) / 1e3, rel=1e-3)  # and global scales
    matrices = 3 * published.hidden_size * published.moe_intermediate_size
    assert experts.moved(1, 8, matrices * 9 // 16, 4096) == 8 * 14155776 + 40960


def test_linear_attention_runs_as_rows_verified_rows_and_prompts(published):
    bench = small_bench((1, 3, 512))
    kda.measure(bench)
    assert cases(bench) == {
        (kda.DECODE, 1),
        (kda.DECODE, 3),
        (kda.VERIFY, 4),
        (kda.VERIFY, 12),
        (kda.PROMPT, 512),
    }
    state, raw = 64 * 128 * 128 * 4, 2 * 3 * 8192
    assert kda.moved_by_streams(published, 8, 1) == 8 * (2 * state + 5 * raw + raw)
    assert kda.moved_by_streams(published, 2, 4) == 2 * (5 * state + 11 * raw + 4 * raw)
    assert kda.moved_by_prompt(published, 2048) == 2048 * 12 * 8192 + 2 * state


def test_latent_attention_runs_together_and_operation_by_operation():
    bench = small_bench((2, 512))
    attention.measure(bench, contexts=(12, 600), longer=(900,), prompts=(600, 700), caches=(64, 32))
    names = {"between products", "attend", "choose tokens"}
    contexts = {2: (12, 600), 512: (600,)}
    expected = {(f"{name}, {c} tokens", n) for name in names for n in contexts for c in contexts[n]}
    expected |= {("choose tokens, 900 tokens", 2), ("choose tokens, 700 tokens", 512)}
    expected |= {("attend, 512 tokens", 512)}
    single = ("absorb keys", "expand values", "enter rows")
    assert cases(bench) == expected | {(name, n) for name in single for n in (2, 512)}
    by_case = {(row.case, row.rows): row for row in bench.table.rows}
    config = bench.config
    queries = 2 * 2 * (2 * config.num_attention_heads * config.kv_lora_rank)
    read = 2 * 12 * config.kv_lora_rank * 2
    assert by_case["attend, 12 tokens", 2].floor_us == pytest.approx((queries + read) / 1e3)


def test_sites_and_encoders_run():
    bench = small_bench((3,))
    hyper.measure(bench)
    encode.measure(bench, side=128)
    site, *encoders = bench.table.rows
    assert site.floor_us == pytest.approx((24 * 512 * 2 + 3 * 128 * 30) / 1e3)
    numbers = 128 * 128
    for row, moved in zip(
        encoders,
        (2 + 1 + 1 / 32, 4 + 1 / 2 + 1 / 16 + 4 / numbers, 2 + 1 / 2 + 1 / 16 + 4 / numbers, 3 + 4 / numbers),
        strict=True,
    ):
        assert row.floor_us == pytest.approx(numbers * moved / 1e3)
    assert bench.clock.calls[1:] == [encode.MATRICES] * 4


def test_the_head_and_what_is_small_in_a_step_run():
    bench = small_bench((1, 5))
    head.measure(bench)
    small.measure(bench)
    draws = {f"draw, {way.value}" for way in head.DRAWS}
    expected = {head.NORM, head.WHOLE, *draws}
    expected |= {"embedding", "embedding and hidden row, normed", "residual and norm"}
    assert cases(bench) == {(case, n) for case in expected for n in (1, 5)}
    by_case = {(row.case, row.rows): row for row in bench.table.rows}
    assert by_case["draw, greedy", 5].floor_us == pytest.approx(5 * 256 * 4 / 1e3)
    assert by_case["residual and norm", 5].floor_us == pytest.approx(5 * 128 * 10 / 1e3)
    assert by_case[head.WHOLE, 1].floor_us > by_case[head.NORM, 1].floor_us


@pytest.mark.parametrize("prompt", [False, True])
def test_chosen_pools_rise_and_lie_before_their_row(prompt):
    bench = small_bench()
    caches = Caches(bench, 64, 32)
    step = caches.step(5, 600, 0, prompt=prompt)
    group, top = bench.config.index_kpool, bench.config.index_topk
    short = replace(step, positions=torch.tensor([0, group - 1, 7, 70, 599], dtype=torch.int32))
    for rows in (step, short):
        for position, chosen in zip(rows.positions.tolist(), caches.selection(rows).tolist(), strict=True):
            kept = [token for token in chosen if token >= 0]
            assert len(kept) == group * min(top // group, (position + 1) // group)
            assert kept == sorted(set(kept))
            assert chosen[len(kept) :] == [-1] * (len(chosen) - len(kept))
            assert all(kept[place] % group == place % group for place in range(len(kept)))
            assert max(kept, default=0) <= position
