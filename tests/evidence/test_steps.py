"""Timed steps: floors that count what a step moves, contexts that are whole, shares that follow the marks."""

import json
from dataclasses import replace

import pytest
import torch

from intarsia.core import receipt as receipts
from intarsia.core.errors import UsageError
from intarsia.evidence.receipts import steps_receipt
from intarsia.evidence.speed.steps import breakdown
from intarsia.evidence.speed.steps import run as steps_run
from intarsia.evidence.speed.steps.contexts import random_context
from intarsia.evidence.speed.steps.decode import record_decode, time_decode
from intarsia.evidence.speed.steps.floors import decode_bytes, draft_bytes, network_bytes, prompt_flops
from intarsia.evidence.speed.steps.prompts import time_prompt
from intarsia.evidence.speed.steps.run import Rates, StepsRun, measure_decode
from intarsia.evidence.speed.steps.settings import DecodeSettings, PrefillSettings
from intarsia.evidence.synthetic import network
from intarsia.kernels import linear, norm
from intarsia.models.glm5_next import attention, model
from tests.evidence.test_synthetic import small_geometry


@pytest.fixture(scope="module")
def small():
    config = small_geometry()
    config["text_config"]["n_routed_experts"] = 24
    return network(config, recipe="fp4-local", dtype=torch.float32, device="cpu")


def test_a_context_fills_all_caches_but_the_pages_nobody_has(small):
    state = random_context(small, streams=3, context=100, room=30, step_rows=2)
    assert (state.page_table[:, 0] < state.null_page).all()
    for cache in (*state.paged, state.tail, state.window, state.memory):
        assert 0.05 < cache.float().std() < 2
    assert state.settings.step_rows == 2


def test_a_steps_bytes_grow_with_rows_streams_and_context(small):
    config, heads = small.config, small.linear_heads
    one = decode_bytes(small, 1, 1000)
    memory = len(config.kda_layers) * heads * config.linear_head_dim**2 * 4
    latents = len(config.mla_layers) * config.kv_lora_rank * 4
    pooled = len(config.mla_layers) * config.index_head_dim * 4 // config.index_kpool
    assert decode_bytes(small, 1, 1004) - one == 4 * (latents + pooled)
    assert decode_bytes(small, 2, 1000) - one > 2 * memory
    assert decode_bytes(small, 1, 1000, rows=2) - one > memory
    weights = sum(weight.nbytes for weight in small.weights.mtp.block.mlp.experts.gate_up.values())
    assert 0 < draft_bytes(small, 2) - draft_bytes(small, 1) < 2 * weights


def test_a_prompts_operations_are_twice_its_matrices_and_some_attention(small):
    per_token = prompt_flops(small, 64) / 64
    dense = 2 * sum(layer.block.mlp.gate_up.shape[0] * 128 for layer in small.weights.layers[:1])
    assert per_token > dense
    assert prompt_flops(small, 4096) / 4096 > per_token


def test_decode_and_prompts_are_timed_on_any_device(small):
    timed = time_decode(small, streams=2, context=70, drafts=1, steps=2, bytes_a_second=1e9)
    decode = record_decode(small, timed, bytes_a_second=1e9, empty_kernel=2e-6)
    assert decode.seconds == timed.seconds > 0
    assert 8 <= decode.experts <= 16
    assert decode.floor_seconds == decode_bytes(small, 2, 70, experts=decode.experts) / 1e9
    assert decode_bytes(small, 1, 70, experts=8) == decode_bytes(small, 1, 70)
    assert decode.planned_bytes > network_bytes(small)
    assert "cpu" in decode.eager_because
    assert decode.drafting is None  # nothing is captured, so chains are not
    prompt = time_prompt(small, 200, matrix_rate=1e12, piece=64, repeats=1)
    assert prompt.finite
    assert prompt.share == prompt.rate / 1e12
    rates = Rates(1e9, 1e12, 2e-6)
    settings = DecodeSettings(synthetic=4)
    run = StepsRun("decode", "small", None, settings, {}, rates, {}, {}, (decode,), (prompt,), ("a note",))
    receipt = steps_receipt(run)
    assert receipt.id == receipts.identity(receipt)
    assert json.loads(json.dumps(run.as_dict()))["decode"][0]["streams"] == 2
    assert "a note" in receipt.not_run


def test_nothing_is_recorded_before_all_is_timed(small, monkeypatch):
    # Recording kernels once makes every later step of the process longer.
    done = []

    def watched(name):
        original = getattr(steps_run, name)

        def work(model, *args, **options):
            done.append(name)
            return original(model, *args, **options)

        monkeypatch.setattr(steps_run, name, work)

    watched("time_decode")
    watched("record_decode")
    monkeypatch.setattr(steps_run, "_subject", lambda *_: (torch.device("cpu"), ("small", None, small)))
    monkeypatch.setattr(Rates, "of", classmethod(lambda cls, device: cls(1e9, 1e12, 2e-6)))
    monkeypatch.setattr(steps_run, "clocks", lambda device: {})
    settings = DecodeSettings(synthetic=4, streams=(1, 2), context=70, steps=1, drafts=0)
    run = measure_decode(settings)
    assert done == ["time_decode"] * 2 + ["record_decode"] * 2
    assert [result.streams for result in run.decode] == [1, 2]


@pytest.mark.parametrize(
    ("settings", "path", "message"),
    [
        (DecodeSettings(), None, "neither"),
        (DecodeSettings(synthetic=2), "demo", "both"),
        (DecodeSettings(device="cpu"), "demo", "bench speed"),
        (DecodeSettings(device="cuda:77"), "demo", "CUDA devices"),
    ],
)
def test_runs_that_cannot_be_are_refused_before_anything_is_made(settings, path, message):
    with pytest.raises(UsageError, match=message):
        measure_decode(settings, path)


def test_settings_that_mean_nothing_are_refused():
    for wrong in ({"streams": ()}, {"streams": (0,)}, {"context": 0}, {"steps": 0}, {"synthetic": 0}):
        with pytest.raises(UsageError):
            replace(DecodeSettings(), **wrong)
    for wrong in ({"piece": 100}, {"prompts": ()}):
        with pytest.raises(UsageError):
            replace(PrefillSettings(), **wrong)


def test_marks_stand_around_every_operation_and_are_gone_afterwards(small, monkeypatch):
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    before = dict(vars(attention)), dict(vars(model)), dict(vars(linear))
    with breakdown.marked_operations() as marks:
        small.logits([1, 2, 3])
    assert (dict(vars(attention)), dict(vars(model)), dict(vars(linear))) == before
    assert norm.rms_norm is model.rms_norm
    assert marks.log[1::2] == [breakdown.BETWEEN] * (len(marks.log) // 2)
    names = {name.split()[0] for name in marks.log[::2]}
    assert {"embed", "routed_experts"} <= names
    assert "takes_arranged" not in names  # asked before the router runs, and launches nothing
    assert any("FP8_PB_WO[" in name for name in marks.log)


def test_kernels_between_two_marks_belong_to_the_operation():
    mark = ("spin_kernel(long)", 1e-6)
    kernels = (("a", 1.0), mark, ("b", 2.0), ("c", 3.0), mark, ("d", 4.0), mark, ("e", 5.0), mark)
    log = ["one", breakdown.BETWEEN, "one", breakdown.BETWEEN]
    found = {
        share.operation: (share.calls, share.kernels, share.seconds)
        for share in breakdown.shares(breakdown.Timeline(kernels, 20.0, 19.0), log)
    }
    assert found == {"one": (2, 3, 10.0), breakdown.BETWEEN: (2, 2, 5.0)}


def test_time_that_two_kernels_share_counts_once():
    assert breakdown.covered([(0, 2), (1, 3), (1.5, 2.5), (5, 6)]) == 4
    assert breakdown.covered([]) == 0
