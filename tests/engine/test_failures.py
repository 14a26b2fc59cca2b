"""Requests and steps that fail: whoever is not to blame goes on."""

from dataclasses import replace

import pytest

from tests.engine.hash_network import VOCAB, HashNetwork
from tests.engine.rules import Rising
from tests.engine.serving import (
    assert_clean,
    engine_of,
    expected,
    prompt_of,
    request_of,
    serve,
    submit,
)


class Broken(Rising):
    def accept(self, token):
        raise ValueError("no such rule")


class Blocked(Rising):
    def fill(self, words):
        words.zero_()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grammar": Broken()}, "no such rule"),
        ({"grammar": Blocked()}, "no allowed token"),
        ({"tokens": (*prompt_of(1, 60), 44)}, "NaN"),
    ],
)
def test_a_request_that_fails_takes_no_other_with_it(changes, message):
    network = HashNetwork()
    network.poison = 44
    without = [token for token in range(VOCAB) if token != 44]
    others = [request_of(f"o{i}", without[i : i + 40], logit_bias={44: -100.0}) for i in range(3)]
    engine = engine_of(network)
    bad = replace(request_of("bad", without[:50]), **changes)
    outcomes = serve(engine, [others[0], bad, *others[1:]])
    assert outcomes[1].reason == "error"
    assert message in outcomes[1].finished.error
    for other, outcome in zip(others, [outcomes[0], *outcomes[2:]], strict=True):
        assert (outcome.reason, outcome.ids) == ("length", expected(other))
    assert_clean(engine)


def test_a_failed_step_ends_the_stream_that_made_it_fail_and_no_other():
    network = HashNetwork()
    engine = engine_of(network)
    network.fail_on = 44
    without = [token for token in range(VOCAB) if token != 44]
    never = {44: -100.0}
    writing = [request_of(f"w{i}", without[i : i + 40], logit_bias=never, max_tokens=20) for i in range(2)]
    running = [submit(engine, request)[1] for request in writing]
    for _ in range(4):
        engine.step()
    assert all(outcome.ids for outcome in running)
    bad, after = serve(engine, [request_of("bad", [*without[:50], 44]), replace(writing[0], id="after")])
    assert (bad.reason, bad.ids) == ("error", [])
    assert "cannot bear token 44" in bad.finished.error
    for request, outcome in zip([*writing, writing[0]], [*running, after], strict=True):
        assert (outcome.reason, outcome.ids) == ("length", expected(request))
    assert_clean(engine, failed_steps=2)


def test_a_device_that_fails_always_ends_every_request_with_the_reason():
    network = HashNetwork()
    network.fail_on = 3
    outcomes = serve(engine_of(network), [request_of(f"r{i}", (3, 4 + i)) for i in range(6)])
    assert {outcome.reason for outcome in outcomes} == {"error"}
