"""The engine over ranks: requests reach all of them, and every reply is that of one rank."""

import json
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from intarsia import api
from intarsia.checkpoint.paths import locate
from intarsia.core.config import SamplingSettings
from intarsia.engine.engine import Engine
from intarsia.engine.errors import RequestError
from intarsia.engine.events import Finished, Tokens
from intarsia.engine.ranked import RankedEngine, decoded, encoded
from intarsia.engine.requests import Penalties, Request, Thinking
from intarsia.engine.settings import StreamSettings
from intarsia.groups.errors import RanksDivergedError
from intarsia.server.grammar.compiler import GrammarCompiler
from intarsia.server.grammar.sources import regex_source, schema_source
from tests.groups.threads import on_ranks

SETTINGS = StreamSettings(window=256, streams=2, page=64)
REQUESTS = [
    Request("greedy", (5, 99, 300, 41), max_tokens=5),
    Request("sampled", (17, 4, 1000), SamplingSettings(0.9, top_p=0.9, seed=4), max_tokens=5, logprobs=2),
    Request("bent", (17, 4, 1000, 8), max_tokens=4, logit_bias={7: 2.5}, penalties=Penalties(presence=0.5)),
]


@pytest.fixture(scope="module")
def plain():
    engine = Engine(api.load("demo"), SETTINGS)
    handles = [engine.submit(request) for request in REQUESTS]
    while engine.step():
        pass
    return [tokens_of(handle) for handle in handles]


def tokens_of(handle):
    events = list(handle.events())
    assert isinstance(events[-1], Finished)
    return [token for event in events if isinstance(event, Tokens) for token in event.ids]


def served(ranks, drive):
    """What `drive(engine)` gives on rank 0 while the others follow."""
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=30))

    def work(group):
        engine = RankedEngine(api.load("demo", group=group), SETTINGS, group, store)
        if group.rank:
            engine.follow()
            return engine.stats()
        engine.start()
        try:
            return drive(engine)
        finally:
            engine.close()

    return on_ranks(ranks, work)


def test_replies_are_those_of_one_rank(plain):
    def drive(engine):
        handles = [engine.submit(request) for request in REQUESTS]
        return [tokens_of(handle) for handle in handles]

    replies, follower = served(2, drive)
    assert replies == plain
    assert follower.requests_finished == {"length": 3}
    assert follower.pages_free == follower.pages


def test_a_request_that_is_cancelled_ends_on_all_ranks(plain):
    def drive(engine):
        started = threading.Event()
        ended = threading.Event()

        def on_event(event):
            (ended if isinstance(event, Finished) else started).set()

        handle = engine.submit(Request("long", (5, 99, 300, 41), max_tokens=200), on_event)
        assert started.wait(30)
        handle.cancel()
        assert ended.wait(30)
        return tokens_of(engine.submit(REQUESTS[0]))

    reply, follower = served(2, drive)
    assert reply == plain[0]
    assert follower.requests_finished == {"cancelled": 1, "length": 1}


def test_a_rank_in_another_state_is_found_before_the_step():
    def work(group):
        store = dist.HashStore()
        engine = RankedEngine(api.load("demo", group=group), SETTINGS, group, store)
        if group.rank == 1:
            engine.loop.pool.ensure(0, 1)
        with pytest.raises(RanksDivergedError, match="step 0"):
            engine._together([], [])

    on_ranks(2, work)


def test_a_grammar_that_cannot_be_told_is_refused():
    class Anything:
        finished = False

    def work(group):
        engine = RankedEngine(api.load("demo", group=group), SETTINGS, group, dist.HashStore())
        with pytest.raises(RequestError, match="cannot tell it"):
            engine.submit(Request("g", (1,), grammar=Anything()))
        torch.set_num_threads(1)

    on_ranks(2, work)


SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Grace"]}, "age": {"type": "integer", "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def test_every_rank_follows_the_grammar_of_a_request():
    text = (locate("demo") / "tokenizer.json").read_text()
    ends = (0,)
    sources = [schema_source(SCHEMA, "schema"), regex_source("[a-f]{3}-[0-9]{2}", "regex")]

    def requests(compiler):
        return [
            Request(f"r{index}", (5, 99, 300, 41), SamplingSettings(1.0, seed=index), max_tokens=40,
                    grammar=compiler.compile(source)[0])
            for index, source in enumerate(sources)
        ]  # fmt: skip

    engine = Engine(api.load("demo"), SETTINGS, end_ids=ends)
    handles = [engine.submit(request) for request in requests(GrammarCompiler(text, 4096, ends))]
    while engine.step():
        pass
    alone = [tokens_of(handle) for handle in handles]
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=30))

    def work(group):
        grammars = GrammarCompiler(text, 4096, ends)
        network = api.load("demo", group=group)
        engine = RankedEngine(network, SETTINGS, group, store, end_ids=ends, grammars=grammars)
        if group.rank:
            engine.follow()
            return engine.stats().requests_finished
        engine.start()
        try:
            handles = [engine.submit(request) for request in requests(grammars)]
            return [tokens_of(handle) for handle in handles]
        finally:
            engine.close()

    together, finished = on_ranks(2, work)
    assert together == alone
    assert finished == {"stop": 2}
    tokenizer = GrammarCompiler(text, 4096, ends).tokenizer
    assert set(json.loads(tokenizer.decode_str([t for t in together[0] if t]))) == {"name", "age"}


def test_requests_survive_the_way_to_the_other_ranks():
    thinking = Thinking(close_id=9, open_id=8, inside=True, budget=4, forced_close=(1, 9, 1))
    request = Request(
        "all", (1, 2), SamplingSettings(0.5, 3, 0.9, 0.1, 2**64 - 1), max_tokens=3, stop=("a", "b"),
        stop_ids=(4,), ignore_eos=True, include_stop=True, logprobs=1, prompt_logprobs=0,
        penalties=Penalties(1.5, 0.25, -0.5), logit_bias={3: -1.5}, draft=False, priority=-2,
        thinking=thinking, loop_guard=True, keep_at=(1,), shared_at=(1,), cache_salt="s", cache=False,
    )  # fmt: skip
    assert decoded(json.loads(json.dumps(encoded(request)))) == request
    for one in REQUESTS:
        assert decoded(json.loads(json.dumps(encoded(one)))) == one
