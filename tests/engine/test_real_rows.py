"""The engine over the real network in miniature: the bits of logits, not only tokens, are those of a lone
stream."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from intarsia.core.config import CacheType, GenerationSettings, SamplingSettings
from intarsia.engine.engine import Engine
from intarsia.engine.generate import Generation
from intarsia.engine.runner import ModelRunner
from intarsia.engine.settings import StreamSettings
from intarsia.families.glm5_next.config import Glm5NextConfig
from tests.engine.serving import EvenCosts, Outcome, assert_clean, run, serve
from tests.engine.serving import request_of as plain_request
from tests.models.oracle import network, random_tensors, tiny_config

SETTINGS = StreamSettings(
    streams=3, window=384, page=64, pool_tokens=1536, chunk=64, prompt_rows=128, kept_every=0, kept_apart=64
)
SAMPLED = SamplingSettings(temperature=0.9, top_p=0.9, seed=5)


LATENTS = pytest.mark.parametrize("latents", ["auto", "bfloat16", "fp8"])


@cache
def model(latents: CacheType = "auto"):
    config = tiny_config("kmkm", dense=1, hc_sinkhorn_iters=3)
    tensors = random_tensors(Glm5NextConfig.from_checkpoint_config(config), 3)
    return network(config, tensors, latents=latents)


def prompt(seed: int, length: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, 128, (400,), generator=generator)[:length].tolist())


def request_of(name, tokens, **changes):
    changes.setdefault("max_tokens", 8)
    return plain_request(name, tokens, **changes)


@cache
def alone(
    tokens: tuple[int, ...], sampling: SamplingSettings, count: int, latents: CacheType = "auto"
) -> list[int]:
    """The reply of the single-stream runner, one row a step."""
    settings = GenerationSettings(
        temperature=sampling.temperature, top_p=sampling.top_p, seed=sampling.seed, max_tokens=count
    )
    runner = ModelRunner(model(latents), window=384, max_drafts=0, page=64)
    with torch.inference_mode():
        return list(Generation(runner, tokens, settings).result.tokens)


def engine_of(latents: CacheType = "auto", **changes) -> Engine:
    return Engine(model(latents), replace(SETTINGS, **changes), costs=EvenCosts())


def logprobs(outcome: Outcome):
    return [(entry.logprob, entry.top) for event in outcome.tokens for entry in event.logprobs]


@LATENTS
def test_streams_together_write_what_each_writes_alone(latents):
    requests = [
        request_of(f"r{index}", prompt(index, length), sampling=sampling)
        for index, (length, sampling) in enumerate(
            [(5, SamplingSettings()), (64, SAMPLED), (100, SamplingSettings()), (150, SAMPLED), (17, SAMPLED)]
        )
    ]
    engine = engine_of(latents)
    for request, outcome in zip(requests, serve(engine, requests), strict=True):
        assert outcome.ids == alone(request.tokens, request.sampling, 8, latents)
    assert_clean(engine)


@LATENTS
@pytest.mark.parametrize("page", [64, 128])
def test_a_resumed_prompt_has_the_bits_of_a_fresh_one(page, latents):
    """Resumed alone, and by two branches at once inside the kept page: logprobs are equal to the last bit."""
    head = prompt(9, 192)
    requests = [
        request_of(f"b{index}", head + prompt(20 + index, 30 + index), sampling=SAMPLED, logprobs=3)
        for index in range(3)
    ]
    fresh = [serve(engine_of(latents, page=page), [replace(request, cache=False)])[0] for request in requests]
    engine = engine_of(latents, page=page)
    serve(engine, [request_of("seed", (*head, 1), max_tokens=1)])
    resumed = serve(engine, requests)
    for cold, warm in zip(fresh, resumed, strict=True):
        assert warm.usage.cached_tokens == 192
        assert warm.ids == cold.ids
        assert logprobs(warm) == logprobs(cold)
    assert_clean(engine)


@LATENTS
def test_the_plan_counts_latents_as_they_are_stored(latents):
    engine = engine_of(latents)
    assert engine.capacity.total == engine.loop.state.nbytes
    widths = {"auto": 4, "bfloat16": 2, "fp8": 1}
    config, state = model().config, engine.loop.state
    row = widths[latents] * config.kv_lora_rank + (4 if latents == "fp8" else 0)
    layers = len(config.mla_layers) + config.num_nextn_predict_layers
    pooled = state.pooled.nbytes // (engine.capacity.state.pages + 1)
    assert engine.capacity.sizes.page == layers * SETTINGS.page * row + pooled


def test_prompt_logprobs_do_not_depend_on_the_pieces():
    request = request_of("r", prompt(2, 200), max_tokens=1, prompt_logprobs=2)
    outcomes = []
    for rows in (64, 128, 320):
        (outcome,) = serve(engine_of(chunk=rows, prompt_rows=rows), [request])
        outcomes.append(outcome.prompt)
    assert outcomes[0] == outcomes[1] == outcomes[2]


@LATENTS
def test_a_place_given_up_is_taken_again_with_the_same_bits(latents):
    request = request_of("r", prompt(4, 90), sampling=SAMPLED, logprobs=0, max_tokens=14, priority=1)
    (calm,) = serve(engine_of(latents), [request])
    engine = engine_of(latents, streams=1)
    outcome = Outcome()
    engine.submit(request, outcome.take)
    while len(outcome.ids) < 6:
        engine.step()
    other = Outcome()
    engine.submit(request_of("other", prompt(5, 70), max_tokens=2), other.take)
    run(engine)
    assert engine.loop.counters.sent_back == 1
    assert outcome.ids == calm.ids == alone(request.tokens, SAMPLED, 14, latents)
    assert logprobs(outcome) == logprobs(calm)
