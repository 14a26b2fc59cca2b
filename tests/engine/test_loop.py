"""Replies of many requests at once equal the ones each would get alone."""

import itertools
import random
from dataclasses import replace

import pytest

from intarsia.core.config import SamplingSettings
from tests.engine.hash_network import VOCAB, HashNetwork
from tests.engine.serving import (
    SAMPLED,
    SMALL,
    DearCosts,
    EvenCosts,
    assert_clean,
    engine_of,
    expected,
    prompt_of,
    request_of,
    run,
    serve,
    submit,
)


def mixed(count: int, seed: int = 0, **changes):
    """Requests of many lengths, greedy and sampled, some of which share beginnings."""
    rng = random.Random(seed)
    return [
        request_of(
            f"r{index}",
            prompt_of(rng.randrange(3), rng.choice((1, 5, 63, 64, 65, 130, 200, 256, 300))),
            sampling=rng.choice(
                (SamplingSettings(), SAMPLED, SamplingSettings(temperature=1.1, top_k=9, seed=index))
            ),
            max_tokens=rng.choice((1, 2, 9, 20)),
            **changes,
        )
        for index in range(count)
    ]


@pytest.mark.parametrize("costs", [EvenCosts, DearCosts])
@pytest.mark.parametrize("drafts", [0, 1, 3, 7])
def test_replies_are_those_of_the_tokens_alone(drafts, costs):
    network = HashNetwork()
    engine = engine_of(network, replace(SMALL, drafts=drafts), costs=costs())
    requests = mixed(12, seed=drafts)
    for request, outcome in zip(requests, serve(engine, requests), strict=True):
        assert outcome.ids == expected(request)
        assert outcome.reason == "length"
    assert network.blind == 0
    assert_clean(engine)


def test_guesses_are_made_and_kept():
    engine = engine_of(settings=replace(SMALL, drafts=3, copy_drafts=0))
    (outcome,) = serve(engine, [request_of("r", prompt_of(1, 100), max_tokens=60)])
    usage = outcome.usage
    assert len(usage.drafted) == 3
    assert sum(usage.accepted) > 0.5 * sum(usage.drafted)
    assert usage.accepted[0] < usage.drafted[0]
    assert engine.loop.counters.steps < 45


def test_no_guess_where_none_pays():
    engine = engine_of(costs=DearCosts(), settings=replace(SMALL, copy_drafts=0))
    (outcome,) = serve(engine, [request_of("r", prompt_of(1, 100), max_tokens=20)])
    assert outcome.usage.drafted == ()


def test_rows_do_not_pile_up_while_no_guess_pays():
    network = HashNetwork()
    engine = engine_of(network, replace(SMALL, copy_drafts=0), costs=DearCosts())
    _, outcome = submit(engine, request_of("r", prompt_of(1, 100), max_tokens=150))
    waiting = []
    while engine.step():
        waiting += [lane.unabsorbed.count for lane in engine.loop.running if lane.writing]
    assert 20 < max(waiting) <= 64
    assert len(outcome.ids) == 150
    assert network.blind == 0


def test_no_guess_for_a_request_that_wants_none():
    network = HashNetwork()
    engine = engine_of(network)
    request = request_of("r", prompt_of(1, 100), draft=False)
    (outcome,) = serve(engine, [request])
    assert outcome.ids == expected(request)
    assert outcome.usage.drafted == ()


def test_copied_guesses_land_in_repeated_text():
    engine = engine_of(HashNetwork(mtp=False), replace(SMALL, drafts=0, copy_drafts=4))
    (outcome,) = serve(engine, [request_of("r", prompt_of(1, 40), max_tokens=60, logit_bias={5: 100.0})])
    assert outcome.ids == [5] * 60
    assert outcome.usage.copied_accepted == outcome.usage.copied > 20
    assert engine.loop.counters.steps < 35


def test_scripted_guesses_wrong_at_every_place_change_nothing():
    request = request_of("r", prompt_of(1, 70), max_tokens=40, sampling=SAMPLED)
    truth = expected(request)

    calls = itertools.count()

    def script(lane, most):
        right = truth[len(lane.reply.tokens) :][:most]
        wrong = next(calls) % 6
        return [(token + (place == wrong)) % VOCAB for place, token in enumerate(right)]

    engine = engine_of(source=script, settings=replace(SMALL, drafts=5))
    (outcome,) = serve(engine, [request])
    assert outcome.ids == truth
    assert len(outcome.usage.drafted) == 5
    places = zip(outcome.usage.accepted, outcome.usage.drafted, strict=True)
    assert all(0 < accepted < drafted for accepted, drafted in places)


@pytest.mark.parametrize("chunk", [64, 128, 512])
def test_chunk_size_changes_nothing(chunk):
    engine = engine_of(settings=replace(SMALL, chunk=chunk, prompt_rows=chunk))
    requests = mixed(8, seed=3)
    for request, outcome in zip(requests, serve(engine, requests), strict=True):
        assert outcome.ids == expected(request)


def test_staggered_arrivals_change_nothing():
    network = HashNetwork()
    engine = engine_of(network)
    requests, outcomes = mixed(16, seed=5), []
    rng = random.Random(9)
    for request in requests:
        outcomes.append(submit(engine, request)[1])
        for _ in range(rng.randrange(6)):
            engine.step()
    run(engine)
    for request, outcome in zip(requests, outcomes, strict=True):
        assert outcome.ids == expected(request)
    assert network.blind == 0
    assert_clean(engine)


def test_writing_goes_on_between_the_pieces_of_a_long_prompt():
    network = HashNetwork()
    engine = engine_of(network, replace(SMALL, chunk=64))
    _, first = submit(engine, request_of("writer", prompt_of(1, 20), max_tokens=40, draft=False))
    engine.step()
    submit(engine, request_of("long", prompt_of(2, 900), max_tokens=1))
    before = len(first.ids)
    for _ in range(10):
        engine.step()
    assert len(first.ids) == before + 10
    pieces = [count for step in network.steps[1:11] for _, _, count, recurrent in step if not recurrent]
    assert max(pieces) == 64
    run(engine)


def test_several_prompts_run_in_one_step():
    network = HashNetwork()
    engine = engine_of(network)
    serve(engine, [request_of(f"r{index}", prompt_of(index, 20)) for index in range(4)])
    assert len(network.steps[0]) == 4


def test_the_shortest_prompt_goes_first_and_none_starves():
    network = HashNetwork()
    engine = engine_of(network, replace(SMALL, prompt_rows=64, chunk=64, streams=3))
    _, long = submit(engine, request_of("long", prompt_of(1, 640), max_tokens=1))
    _, short = submit(engine, request_of("short", prompt_of(2, 100), max_tokens=1))
    engine.step()
    engine.step()
    assert short.finished is not None
    assert long.finished is None
    for index in range(40):
        submit(engine, request_of(f"s{index}", prompt_of(3 + index, 64), max_tokens=1))
        engine.step()
        if long.finished is not None:
            break
    pieces = [
        step for step in network.steps if any(count == 64 and stream == 0 for stream, _, count, _ in step)
    ]
    assert pieces, "a long prompt passed over again and again is served in the end"
    run(engine)
    assert long.reason == "length"
