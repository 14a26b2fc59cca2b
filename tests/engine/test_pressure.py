"""Too little room: who waits, who pauses, who gives up a place, and that nothing is lost or leaked."""

import random
from dataclasses import replace

import pytest

from intarsia.engine.errors import CapacityError
from intarsia.engine.sizes import plan_capacity
from tests.engine.hash_network import HashNetwork
from tests.engine.serving import (
    SAMPLED,
    SMALL,
    assert_clean,
    engine_of,
    expected,
    prompt_of,
    request_of,
    run,
    serve,
    submit,
)

TIGHT = replace(SMALL, window=256, page=32, pool_tokens=256, streams=3, reply_share=32)


def test_a_request_waits_for_pages_and_says_so():
    engine = engine_of(settings=TIGHT)
    submit(engine, request_of("big", prompt_of(1, 120), max_tokens=100))
    _, second = submit(engine, request_of("second", prompt_of(2, 100), max_tokens=3))
    engine.step()
    assert engine.stats().waiting_for == "request second waits for pages"
    assert engine.stats().running == 1
    run(engine)
    assert second.ids == expected(request_of("second", prompt_of(2, 100), max_tokens=3))
    assert engine.stats().waiting_for == ""
    assert_clean(engine)


def test_later_requests_overtake_a_blocked_one_eight_times_at_most():
    engine = engine_of(settings=replace(TIGHT, streams=4, reply_share=8))
    # The first holds enough of the pool that a whole window does not fit beside it.
    submit(engine, request_of("holder", prompt_of(1, 40), max_tokens=200, draft=False))
    engine.step()
    _, blocked = submit(engine, request_of("blocked", prompt_of(2, 240), max_tokens=1))
    small = [submit(engine, request_of(f"s{i}", prompt_of(3 + i, 5), max_tokens=2))[1] for i in range(12)]
    for _ in range(60):
        engine.step()
    assert sum(outcome.finished is not None for outcome in small) == 8
    assert blocked.finished is None
    run(engine)
    assert all(outcome.reason == "length" for outcome in [*small, blocked])
    assert_clean(engine)


def test_a_less_important_request_does_not_overtake_one_that_waits_for_room():
    engine = engine_of(settings=replace(TIGHT, reply_share=8))
    submit(engine, request_of("holder", prompt_of(1, 40), max_tokens=60, draft=False))
    engine.step()
    _, blocked = submit(engine, request_of("blocked", prompt_of(2, 240), max_tokens=1))
    _, lesser = submit(engine, request_of("lesser", prompt_of(3, 5), max_tokens=2, priority=1))
    while blocked.finished is None:
        engine.step()
        assert not lesser.ids or blocked.ids
    run(engine)
    assert lesser.reason == "length"


def test_replies_grow_past_their_share_pause_and_go_on():
    """Three replies that each need the whole pool in the end: some give up their place and write the same
    again."""
    network = HashNetwork()
    engine = engine_of(network, TIGHT)
    requests = [request_of(f"r{index}", prompt_of(index, 30 + index), max_tokens=200) for index in range(3)]
    outcomes = serve(engine, requests)
    for request, outcome in zip(requests, outcomes, strict=True):
        assert outcome.reason == "length"
        assert outcome.ids == expected(request)
    assert engine.loop.counters.sent_back > 0
    assert network.blind == 0
    assert_clean(engine)


def test_kept_states_make_way_for_running_requests():
    engine = engine_of(settings=replace(TIGHT, pool_tokens=320))
    for index in range(3):
        serve(engine, [request_of(f"k{index}", prompt_of(index, 70))])
    assert len(engine.loop.store) == 3
    request = request_of("big", prompt_of(9, 200), max_tokens=50)
    (outcome,) = serve(engine, [request])
    assert outcome.ids == expected(request)
    assert len(engine.loop.store) < 3
    (again,) = serve(engine, [request_of("k0", prompt_of(0, 70))])
    assert "were needed by running requests" in again.usage.cache_reason
    assert_clean(engine)


def test_the_state_resumed_from_goes_last_but_goes_if_it_must():
    engine = engine_of(settings=replace(TIGHT, page=64))
    tokens = prompt_of(1, 250)
    serve(engine, [request_of("first", tokens[:130], max_tokens=1)])
    request = request_of("second", tokens, max_tokens=6)
    (outcome,) = serve(engine, [request])
    assert outcome.ids == expected(request)
    assert outcome.usage.cached_tokens == 128
    assert_clean(engine)


def test_an_important_request_takes_a_place_and_the_other_writes_the_same_again():
    network = HashNetwork()
    engine = engine_of(network, replace(SMALL, streams=1))
    background = request_of("background", prompt_of(1, 100), max_tokens=30, priority=5, sampling=SAMPLED)
    _, slow = submit(engine, background)
    for _ in range(5):
        engine.step()
    assert slow.ids
    before = list(slow.ids)
    important = request_of("important", prompt_of(2, 90), max_tokens=4)
    _, fast = submit(engine, important)
    engine.step()
    assert engine.loop.running[0].request.id == "important"
    run(engine)
    assert fast.ids == expected(important)
    assert slow.ids[: len(before)] == before
    assert slow.ids == expected(background)
    assert engine.loop.counters.sent_back == 1
    assert network.blind == 0
    assert_clean(engine)


def test_prompt_logprobs_of_a_prompt_that_ran_twice():
    engine = engine_of(settings=replace(SMALL, streams=1, prompt_rows=64))
    request = request_of("r", prompt_of(1, 200), max_tokens=1, prompt_logprobs=1, priority=1)
    (calm,) = serve(engine, [request])
    _, outcome = submit(engine, request)
    engine.step()
    engine.step()
    submit(engine, request_of("important", prompt_of(2, 20), max_tokens=1))
    run(engine)
    assert engine.loop.counters.sent_back == 1
    assert outcome.prompt == calm.prompt


def test_a_less_important_request_takes_nobodys_place():
    engine = engine_of(settings=replace(SMALL, streams=1))
    _, first = submit(engine, request_of("first", prompt_of(1, 10), max_tokens=20, draft=False))
    engine.step()
    order = []
    for name, priority in (("low", 9), ("same", 0), ("high", 0)):
        engine.submit(
            request_of(name, prompt_of(2, 10), max_tokens=1, priority=priority),
            lambda event, name=name: order.append(name) if hasattr(event, "usage") else None,
        )
    run(engine)
    assert first.reason == "length"
    assert engine.loop.counters.sent_back == 0
    assert order == ["same", "high", "low"]


def _stage(engine, name: str) -> str:
    for lane in engine.loop.running:
        if lane.request.id == name:
            if lane.prompt_left:
                return "resumed" if lane.cached else "prompt"
            return "replay" if lane.replay_left else "writing"
    return "sent back" if any(lane.reply.tokens for lane in engine.loop.admission.waiting) else "waiting"


@pytest.mark.parametrize(
    "stage", ["submitted", "waiting", "prompt", "resumed", "writing", "sent back", "replay", "finished"]
)
def test_cancelled_at_every_stage(stage):
    """The cancelled request ends there, the others' replies stay what they are, and nothing leaks."""
    network = HashNetwork()
    engine = engine_of(
        network, replace(TIGHT, streams=1, chunk=64, prompt_rows=64, window=512, pool_tokens=512)
    )
    serve(engine, [request_of("seed", prompt_of(1, 130), max_tokens=1)])
    if stage in ("waiting", "submitted"):
        submit(engine, request_of("holder", prompt_of(4, 10), max_tokens=9))
        engine.step()
    tokens = prompt_of(1, 300) if stage == "resumed" else prompt_of(2, 300)
    victim = request_of("victim", tokens, max_tokens=20, priority=1, sampling=SAMPLED)
    handle, outcome = submit(engine, victim)
    other = None
    for _ in range(200):
        if stage == "submitted" or (stage == "finished" and outcome.finished is not None):
            break
        engine.step()
        if stage in ("sent back", "replay") and len(outcome.ids) > 4 and other is None:
            other = submit(engine, request_of("other", prompt_of(3, 100), max_tokens=3))
        if outcome.finished is None and _stage(engine, "victim") == stage:
            break
    else:
        pytest.fail(f"the request was never {stage}")
    before = list(outcome.ids)
    handle.cancel()
    handle.cancel()
    run(engine)
    assert outcome.reason == ("length" if stage == "finished" else "cancelled")
    assert outcome.ids == before == expected(victim)[: len(before)]
    if other is not None:
        assert other[1].ids == expected(request_of("other", prompt_of(3, 100), max_tokens=3))
    assert network.blind == 0
    assert_clean(engine)


@pytest.mark.parametrize("seed", range(3))
def test_random_cancellations(seed):
    rng = random.Random(seed)
    network = HashNetwork()
    engine = engine_of(network, replace(TIGHT, pool_tokens=320, kept_apart=64))
    live = []
    for index in range(14):
        request = request_of(
            f"r{index}",
            prompt_of(rng.randrange(3), rng.choice((3, 70, 130, 150))),
            max_tokens=rng.choice((2, 20, 60)),
            priority=rng.choice((0, 0, 0, 3)),
        )
        live.append((request, *submit(engine, request)))
        for _ in range(rng.randrange(9)):
            engine.step()
        if rng.random() < 0.5:
            rng.choice(live)[1].cancel()
    run(engine)
    for request, handle, outcome in live:
        truth = expected(request)
        assert outcome.ids == (truth[: len(outcome.ids)] if handle.cancelled else truth)
        assert outcome.reason in (("cancelled", "length") if handle.cancelled else ("length",))
    assert network.blind == 0
    assert_clean(engine)


def test_what_does_not_fit_is_refused_with_the_largest_that_does():
    network = HashNetwork()
    with pytest.raises(CapacityError, match="at most 512 tokens") as refusal:
        engine_of(network, replace(SMALL, pool_tokens=512))
    assert refusal.value.largest == 512
    with pytest.raises(CapacityError, match="model's own limit"):
        engine_of(network, replace(SMALL, window=8192))
    capacity = plan_capacity(network.config, SMALL, network.dtype)
    sizes, window_pages = capacity.sizes, SMALL.window // SMALL.page
    budget = sizes.total(3, window_pages)
    bytes_only = replace(SMALL, pool_tokens=None, state_bytes=budget)
    with pytest.raises(CapacityError, match="at most 3 streams") as refusal:
        engine_of(network, bytes_only)
    assert refusal.value.largest == 3
    assert engine_of(network, replace(bytes_only, streams=3)).capacity.state.pages == window_pages
    with pytest.raises(CapacityError, match="at most 96 tokens for one stream") as refusal:
        engine_of(network, replace(bytes_only, state_bytes=sizes.total(1, 3)))
    assert refusal.value.largest == 96


@pytest.mark.parametrize(
    ("streams", "window", "page", "pages"),
    [(3, 100, 64, 6), (3, 128, 64, 6), (1, 65, 64, 2), (4, 4096, 4096, 4), (64, 4096, 512, 256)],
)
def test_the_pool_holds_every_streams_window_in_whole_pages_by_default(streams, window, page, pages):
    network = HashNetwork()
    settings = replace(SMALL, streams=streams, window=window, page=page, pool_tokens=None)
    assert plan_capacity(network.config, settings, network.dtype).state.pages == pages


def test_sizes_are_those_of_the_caches():
    engine = engine_of()
    capacity, state = engine.capacity, engine.loop.state
    assert capacity.total == state.nbytes
    serve(engine, [request_of("r", prompt_of(1, 100))])
    (kept,) = engine.loop.store._states.values()
    assert kept.snapshot.nbytes == capacity.sizes.kept
    assert engine.loop.store.nbytes == capacity.sizes.kept + 2 * capacity.sizes.page
