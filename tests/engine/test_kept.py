"""Kept prompt states: resumed equals fresh, found by exact prefix, dropped in order, and the reader is told
why."""

from array import array
from dataclasses import replace

import pytest

from intarsia.engine.kept import KeepPoint, block_digests, keep_points
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


def kept_positions(engine):
    return sorted(state.position for state in engine.loop.store._states.values())


@pytest.mark.parametrize("length", [65, 127, 128, 129, 200, 257, 320])
@pytest.mark.parametrize("page", [32, 64, 128])
def test_a_prompt_sent_twice_is_resumed_and_answers_the_same(length, page):
    network = HashNetwork()
    engine = engine_of(network, replace(SMALL, page=page))
    request = request_of("r", prompt_of(1, length), sampling=SAMPLED)
    (first,) = serve(engine, [request])
    (second,) = serve(engine, [request])
    assert first.usage.cached_tokens == 0
    assert second.usage.cached_tokens == (length - 1) // 64 * 64
    assert f"resumed at token {second.usage.cached_tokens} of {length}" in second.usage.cache_reason
    assert first.ids == second.ids == expected(request)
    assert first.usage.drafted == second.usage.drafted
    assert network.blind == 0
    assert_clean(engine)


def test_a_conversation_resumes_at_the_end_of_its_history():
    network = HashNetwork()
    engine = engine_of(network)
    tokens = prompt_of(1, 300)
    cached = []
    for turn in range(4):
        request = request_of(f"t{turn}", tokens, keep_at=(len(tokens) - 3,), sampling=SAMPLED)
        (outcome,) = serve(engine, [request])
        assert outcome.ids == expected(request)
        cached.append(outcome.usage.cached_tokens)
        tokens = tokens + tuple(outcome.ids) + prompt_of(20 + turn, 150)
    assert cached == [0, 256, 448, 576]
    assert network.blind == 0
    assert_clean(engine)


def test_an_edited_turn_resumes_where_it_begins():
    engine = engine_of()
    head = prompt_of(1, 400)
    first = request_of("a", head + prompt_of(2, 300), keep_at=(690, 400))
    serve(engine, [first])
    assert kept_positions(engine) == [384, 640]
    edited = request_of("b", head + prompt_of(3, 310), keep_at=(700, 400))
    (outcome,) = serve(engine, [edited])
    assert outcome.usage.cached_tokens == 384
    assert outcome.ids == expected(edited)


def test_conversations_share_a_system_block():
    network = HashNetwork()
    engine = engine_of(network)
    system = prompt_of(1, 450)
    requests = [
        request_of(f"c{index}", system + prompt_of(5 + index, 90), keep_at=(520, 450), shared_at=(450,))
        for index in range(4)
    ]
    outcomes = serve(engine, requests)
    # All four arrive together: three wait until the first has kept what they share.
    assert [outcome.usage.cached_tokens for outcome in outcomes] == [0, 448, 448, 448]
    for request, outcome in zip(requests, outcomes, strict=True):
        assert outcome.ids == expected(request)
    assert network.blind == 0
    assert_clean(engine)


def test_an_unmarked_shared_beginning_is_kept_once_it_is_seen_to_be_shared():
    engine = engine_of()
    head = prompt_of(1, 500)
    cached = []
    for index in range(3):
        request = request_of(f"c{index}", head + prompt_of(7 + index, 200))
        (outcome,) = serve(engine, [request])
        assert outcome.ids == expected(request)
        cached.append(outcome.usage.cached_tokens)
        if index == 1:
            assert "token 500, where the prompt parts" in outcome.usage.cache_reason
    assert cached == [0, 0, 448]


def test_states_between_serve_unmarked_prefixes():
    engine = engine_of(settings=replace(SMALL, kept_every=128, kept_apart=64))
    head = prompt_of(1, 500)
    serve(engine, [request_of("a", head + prompt_of(2, 100))])
    (outcome,) = serve(engine, [request_of("b", head + prompt_of(3, 100))])
    assert outcome.usage.cached_tokens == 384


def test_who_resumes_does_not_disturb_who_wrote_or_who_resumes_too():
    """Three branches of one prefix run at once, inside one page, and each writes its own rows there."""
    network = HashNetwork()
    engine = engine_of(network, replace(SMALL, page=128, kept_apart=64))
    head = prompt_of(1, 64)
    serve(engine, [request_of("seed", (*head, 1))])
    requests = [
        request_of(f"b{index}", head + prompt_of(3 + index, 20 + index), sampling=SAMPLED, max_tokens=30)
        for index in range(4)
    ]
    for request, outcome in zip(requests, serve(engine, requests), strict=True):
        assert outcome.usage.cached_tokens == 64
        assert outcome.ids == expected(request)
    assert network.blind == 0
    assert_clean(engine)


def test_a_lone_reader_goes_on_in_the_kept_page_without_a_copy():
    engine = engine_of(settings=replace(SMALL, page=128))
    request = request_of("r", prompt_of(1, 100), max_tokens=2)
    serve(engine, [request])
    pool = engine.loop.pool
    assert pool.pages - pool.free == 1
    submit(engine, request)
    engine.step()
    assert pool.pages - pool.free == 1
    run(engine)


def test_a_branch_leaves_the_rows_of_longer_states_in_its_page_alone():
    """Two states of one prompt lie in one page; who resumes from the shorter one must not write there."""
    engine = engine_of(settings=replace(SMALL, page=256, kept_apart=64))
    tokens = prompt_of(1, 200)
    serve(engine, [request_of("both", tokens, keep_at=(199, 64))])
    assert kept_positions(engine) == [64, 192]
    branch = request_of("branch", tokens[:64] + prompt_of(2, 100))
    (outcome,) = serve(engine, [branch])
    assert outcome.usage.cached_tokens == 64
    (longer,) = serve(engine, [request_of("longer", tokens)])
    assert longer.usage.cached_tokens == 192
    assert longer.ids == expected(request_of("longer", tokens))
    assert_clean(engine)


def test_equal_digests_are_no_match_without_equal_tokens():
    engine = engine_of()
    tokens = array("q", prompt_of(1, 200))
    serve(engine, [request_of("r", tokens)])
    digests = block_digests(tokens, None)
    assert engine.loop.store.find(tokens, digests).position == 192
    forged = tokens[:]
    forged[100] += 1
    assert engine.loop.store.find(forged, digests).state is None


def test_salt_separates():
    engine = engine_of()
    tokens = prompt_of(1, 200)
    serve(engine, [request_of("a", tokens, cache_salt="one")])
    other, same = serve(
        engine, [request_of("b", tokens, cache_salt="two"), request_of("c", tokens, cache_salt="one")]
    )
    assert (other.usage.cached_tokens, same.usage.cached_tokens) == (0, 192)


def test_requests_that_do_without_kept_states():
    engine = engine_of()
    tokens = prompt_of(1, 200)
    (outcome,) = serve(engine, [request_of("a", tokens, cache=False)])
    assert len(engine.loop.store) == 0
    assert "does without" in outcome.usage.cache_reason
    serve(engine, [request_of("b", tokens)])
    (outcome,) = serve(engine, [request_of("c", tokens, prompt_logprobs=0)])
    assert outcome.usage.cached_tokens == 0
    assert "prompt logprobs" in outcome.usage.cache_reason
    engine = engine_of(settings=replace(SMALL, kept_bytes=0))
    first, second = (serve(engine, [request_of("d", tokens)])[0] for _ in range(2))
    assert second.usage.cached_tokens == 0
    assert "no states are kept" in second.usage.cache_reason
    assert first.ids == second.ids


def test_room_is_made_before_the_pass_and_the_reader_is_told_what_was_dropped():
    sizes = engine_of().capacity.sizes
    budget = 2 * (sizes.kept + 7 * sizes.page)
    engine = engine_of(settings=replace(SMALL, kept_bytes=budget))
    prompts = [prompt_of(seed, 210) for seed in range(3)]
    for index, tokens in enumerate(prompts):
        serve(engine, [request_of(f"r{index}", tokens)])
        assert engine.loop.store.nbytes <= budget
    assert len(engine.loop.store) == 2
    (outcome,) = serve(engine, [request_of("again", prompts[0])])
    assert outcome.usage.cached_tokens == 0
    assert "token 192 was dropped since the budget" in outcome.usage.cache_reason
    (outcome,) = serve(engine, [request_of("again", prompts[2])])
    assert outcome.usage.cached_tokens == 192
    assert engine.stats().kept_evicted == 2


def test_what_a_later_turn_extends_goes_before_what_was_used_longer_ago():
    sizes = engine_of().capacity.sizes
    engine = engine_of(settings=replace(SMALL, kept_bytes=3 * sizes.kept + 20 * sizes.page))
    other = prompt_of(9, 130)
    serve(engine, [request_of("other", other)])
    tokens = prompt_of(1, 200)
    serve(engine, [request_of("t0", tokens)])
    serve(engine, [request_of("t1", tokens + prompt_of(2, 120))])
    assert kept_positions(engine) == [128, 192, 256]
    serve(engine, [request_of("new", prompt_of(5, 140))])
    assert kept_positions(engine) == [128, 128, 256]
    (outcome,) = serve(engine, [request_of("other", other)])
    assert outcome.usage.cached_tokens == 128


def test_a_state_resumed_again_is_no_longer_superseded():
    sizes = engine_of().capacity.sizes
    engine = engine_of(settings=replace(SMALL, kept_bytes=3 * sizes.kept + 16 * sizes.page))
    tokens = prompt_of(1, 200)
    serve(engine, [request_of("t0", tokens)])
    serve(engine, [request_of("t1", tokens + prompt_of(2, 120))])
    serve(engine, [request_of("branch", tokens[:193] + prompt_of(3, 5))])
    serve(engine, [request_of("other", prompt_of(9, 130))])
    serve(engine, [request_of("new", prompt_of(5, 140))])
    # t1's end was used longest ago, and nothing is superseded any more.
    assert kept_positions(engine) == [128, 128, 192]


def test_a_state_beyond_the_budget_is_refused():
    engine = engine_of(settings=replace(SMALL, kept_bytes=1000))
    serve(engine, [request_of("r", prompt_of(1, 200))])
    assert len(engine.loop.store) == 0
    assert engine.stats().kept_refused == 1


def test_the_wider_prefix_wins_and_every_row_matters():
    engine = engine_of(settings=replace(SMALL, kept_apart=64))
    tokens = prompt_of(1, 300)
    serve(engine, [request_of("r", tokens, keep_at=(290, 128, 64))])
    assert kept_positions(engine) == [64, 128, 256]
    for place, cached in ((10, 0), (64, 64), (100, 64), (200, 128), (299, 256)):
        changed = list(tokens)
        changed[place] = (changed[place] + 1) % 61
        request = request_of("x", changed, cache_salt=None)
        (outcome,) = serve(engine, [request])
        assert outcome.usage.cached_tokens == cached
        assert outcome.ids == expected(request)


def test_points_keep_their_distance_and_the_end_comes_first():
    request = request_of("r", prompt_of(1, 1000), keep_at=(980, 700, 650, 30), shared_at=(650,))
    settings = replace(SMALL, kept_apart=256, kept_every=512)
    assert keep_points(request, 0, (), 0, settings) == [
        KeepPoint(960, "end"),
        KeepPoint(640, "shared"),
    ]
    assert keep_points(request, 0, (), 300, settings)[2] == KeepPoint(256, "shared")
    assert keep_points(request, 640, (640,), 0, settings) == [KeepPoint(960, "end")]
    assert keep_points(request, 0, (960,), 0, settings)[0].position == 640


def test_digests_depend_on_every_token_and_the_salt():
    tokens = array("q", prompt_of(1, 200))
    plain = block_digests(tokens, None)
    assert len(plain) == 3
    assert block_digests(tokens[:191], None) == plain[:2]
    assert not set(block_digests(tokens, "salt")) & set(plain)
    tokens[64] += 1
    assert [a == b for a, b in zip(block_digests(tokens, None), plain, strict=True)] == [True, False, False]


def test_choices_run_their_prompt_once():
    from intarsia.engine.requests import choices

    network = HashNetwork()
    engine = engine_of(network)
    request = request_of("r", prompt_of(1, 330), sampling=SAMPLED)
    wanted = choices(request, 3)
    outcomes = serve(engine, wanted)
    assert [outcome.usage.cached_tokens for outcome in outcomes] == [0, 320, 320]
    assert len({tuple(outcome.ids) for outcome in outcomes}) == 3
    for choice, outcome in zip(wanted, outcomes, strict=True):
        assert outcome.ids == expected(choice)
