"""On a GPU steps have the same bits captured or eager, drafted or plain, resumed or fresh, in any company."""

from dataclasses import replace
from functools import cache

import pytest
import torch

import intarsia
from intarsia.core.config import SamplingSettings
from intarsia.engine.engine import Engine
from intarsia.engine.settings import StreamSettings
from intarsia.evidence.synthetic import geometry, network
from tests.engine.serving import DearCosts, EvenCosts, assert_clean, run, serve, submit
from tests.engine.serving import request_of as plain_request

pytestmark = pytest.mark.gpu

GREEDY = SamplingSettings(temperature=0.0)
NUCLEUS = SamplingSettings(temperature=0.9, top_p=0.9, seed=5)
UNCUT = SamplingSettings(temperature=0.9, seed=6)
SETTINGS = StreamSettings(
    streams=3, window=768, page=128, pool_tokens=4096, chunk=64, prompt_rows=192, kept_every=0, kept_apart=64
)
MODELS = pytest.mark.parametrize("name", ["friendly", "demo"])


@pytest.fixture(scope="module", autouse=True)
def needs_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


def friendly_geometry():
    """Few layers, and widths that all kernels take; both kinds of attention, dense and routed blocks."""
    config = geometry("glm-5.3-flash", layers=8, experts=32, vocabulary=4096)
    sizes = {"hidden_size": 1024, "q_lora_rank": 512, "num_attention_heads": 16, "num_key_value_heads": 16}
    sizes |= {"intermediate_size": 1024, "moe_intermediate_size": 512, "linear_num_heads": 16}
    config["text_config"].update(sizes)
    config["text_config"]["linear_attn_config"].update(num_heads=16)
    return config


@cache
def model(name: str):
    if name == "demo":
        return intarsia.load("demo", device="cuda", dtype="bfloat16")
    return network(friendly_geometry(), recipe="fp4-local", dtype=torch.bfloat16, device="cuda", seed=3)


def prompt(seed: int, length: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, 4000, (700,), generator=generator)[:length].tolist())


def request_of(name, tokens, **changes):
    return plain_request(name, tokens, **{"max_tokens": 12, "logprobs": 2, **changes})


def engine_of(name, **changes):
    costs = changes.pop("costs", EvenCosts)()
    return Engine(model(name), replace(SETTINGS, **changes), costs=costs)


def told(outcome):
    """Ids and the bits of their logprobs."""
    logprobs = [(entry.logprob, entry.top) for event in outcome.tokens for entry in event.logprobs]
    return outcome.ids, logprobs


def requests():
    ways = (GREEDY, NUCLEUS, UNCUT, GREEDY, NUCLEUS)
    lengths = (5, 64, 150, 300, 17)
    return [
        request_of(f"r{i}", prompt(i, length), sampling=way)
        for i, (length, way) in enumerate(zip(lengths, ways, strict=True))
    ]


@cache
def alone_and_eager(name):
    """What each request gives alone, one row a step, every kernel launched by itself."""
    engine = engine_of(name, eager=True, drafts=0, copy_drafts=0, streams=1)
    return [told(serve(engine, [request])[0]) for request in requests()]


def test_the_friendly_network_is_captured():
    engine = engine_of("friendly")
    serve(engine, requests()[:1])
    assert engine.loop.steps.reason == ""
    assert engine.loop.chains.reason == ""


def test_what_is_not_captured_says_why():
    engine = engine_of("demo")
    serve(engine, requests()[:1])
    reason = engine.loop.steps.reason
    print(f"the demo in bfloat16: {reason or 'captured'}")
    assert not reason or "the host looks" in reason
    engine = engine_of("demo", eager=True)
    assert "eager" in engine.loop.steps.reason


@MODELS
@pytest.mark.parametrize("drafts", [0, 3])
def test_streams_together_captured_and_drafted_have_the_bits_of_one_alone_and_eager(name, drafts):
    engine = engine_of(name, drafts=drafts, copy_drafts=drafts)
    outcomes = serve(engine, requests())
    assert [told(outcome) for outcome in outcomes] == alone_and_eager(name)
    if drafts:
        assert sum(sum(outcome.usage.drafted) for outcome in outcomes) > 0
    assert_clean(engine)


@MODELS
def test_a_resumed_prompt_has_the_bits_of_a_fresh_one(name):
    head = prompt(9, 192)
    branches = [request_of(f"b{i}", head + prompt(20 + i, 30 + i), sampling=NUCLEUS) for i in range(3)]
    fresh = [told(serve(engine_of(name), [replace(request, cache=False)])[0]) for request in branches]
    engine = engine_of(name)
    serve(engine, [request_of("seed", (*head, 1), max_tokens=1)])
    resumed = serve(engine, branches)
    assert [outcome.usage.cached_tokens for outcome in resumed] == [192] * 3
    assert [told(outcome) for outcome in resumed] == fresh
    assert_clean(engine)


@pytest.mark.parametrize("costs", [EvenCosts, DearCosts])
def test_no_step_of_written_tokens_waits_for_the_device_but_for_tokens(costs):
    engine = engine_of("friendly", costs=costs, copy_drafts=0)
    asked = [
        request_of(f"r{i}", prompt(i, 40), sampling=way, logprobs=None, max_tokens=60, ignore_eos=True)
        for i, way in enumerate((GREEDY, NUCLEUS, UNCUT))
    ]
    outcomes = [submit(engine, request)[1] for request in asked]
    while not all(len(outcome.ids) > 20 for outcome in outcomes):
        engine.step()
    torch.cuda.synchronize()
    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(6):
            engine.step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert engine.loop.counters.failed_steps == 0
    run(engine)
    assert_clean(engine)
