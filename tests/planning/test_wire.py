"""What the plan says of the wire is what ranks send."""

import json

import pytest
import torch.distributed as dist

from intarsia import api
from intarsia.checkpoint import open_checkpoint
from intarsia.core.config import SamplingSettings
from intarsia.engine.engine import Engine
from intarsia.engine.graphs.capture import BUCKETS
from intarsia.engine.ranked import RankedEngine
from intarsia.engine.requests import Request
from intarsia.engine.sampling.draw import NUCLEUS_WIDTHS
from intarsia.engine.settings import StreamSettings
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.planning.plan import plan
from intarsia.planning.wire import CANDIDATES, CAPTURED_ROWS, LINKS, Link, Traffic, wire
from tests.groups.threads import on_ranks


def counted(engine, group):
    """Exchanges and bytes of one step of an engine."""
    sent = []
    start = group._start
    group._start = lambda own: sent.append(own.nbytes) or start(own)
    engine._together([], [])
    group._start = start
    return len(sent), sum(sent)


@pytest.mark.parametrize(("streams", "sampling"), [(1, {}), (3, {}), (2, {"temperature": 0.5, "top_p": 0.5})])
def test_a_step_sends_what_was_planned(streams, sampling):
    settings = StreamSettings(window=128, streams=streams, page=64, drafts=0, copy_drafts=0)
    choice = SamplingSettings(**sampling, seed=1 if sampling else None)
    requests = [Request(f"r{i}", (5, 99, 300 + i), max_tokens=8, sampling=choice) for i in range(streams)]

    def work(group):
        engine = RankedEngine(api.load("demo", group=group), settings, group, dist.HashStore())
        lanes = []
        for order, request in enumerate(requests):
            handle = Engine.submit(engine, request)
            lanes.append(engine._inbox.popleft())
            assert handle.request is request
            assert lanes[-1].order == order
        engine._together(lanes, [])
        while any(lane.prompt_left for lane in lanes):
            engine._together([], [])
        return counted(engine, group)

    planned = plan(open_checkpoint("demo"), ranks=2, streams=streams).wire
    step = planned.sampled if sampling else planned.step
    for exchanges, nbytes in on_ranks(2, work):
        assert (exchanges, nbytes) == (step.exchanges, step.bytes)


def test_candidates_and_rows_are_counted_as_they_are_sent():
    assert NUCLEUS_WIDTHS[0] == CANDIDATES
    assert BUCKETS == CAPTURED_ROWS


def test_a_reply_that_may_ask_for_any_token_gathers_whole_rows():
    settings = StreamSettings(window=128, streams=1, page=64, drafts=0, copy_drafts=0)
    request = Request("r", (5, 99, 300), max_tokens=8, logit_bias={7: 1.0})

    def work(group):
        engine = RankedEngine(api.load("demo", group=group), settings, group, dist.HashStore())
        Engine.submit(engine, request)
        engine._together([engine._inbox.popleft()], [])
        return counted(engine, group)

    planned = plan(open_checkpoint("demo"), ranks=2).wire
    for exchanges, nbytes in on_ranks(2, work):
        assert exchanges == planned.step.exchanges
        assert nbytes == planned.step.bytes - 8 + planned.whole_row


def test_a_prompt_sends_what_was_planned():
    def work(group):
        model = api.load("demo", group=group)
        sent = []
        start = group._start
        group._start = lambda own: sent.append(own.nbytes) or start(own)
        model.logits([7] * 1100)
        return len(sent), sum(sent)

    found = on_ranks(2, work)[0]
    checkpoint = open_checkpoint("demo")
    planned = plan(checkpoint, ranks=2, context=1100).wire
    config = Glm5NextConfig.from_checkpoint_config(checkpoint.config)
    rows, layers = 1100, config.num_hidden_layers
    sums = 2 * layers * rows * config.hidden_size * 4
    # here without the MTP layer, and with all rows' logits at the end of each piece
    assert found == (2 * (2 * layers + 1), sums + rows * (config.vocab_size // 2) * 4)
    mtp = 2 * rows * config.hidden_size * 4
    assert planned.prompt == Traffic(2 * (2 * layers + 3), sums + mtp + 2 * 8)


def test_more_ranks_send_more_and_a_ring_halves_it(real_config):
    config = Glm5NextConfig.from_checkpoint_config(real_config)
    two, four = wire(config, 2), wire(config, 4)
    assert two.step.exchanges == four.step.exchanges == 2 * 45 + 2
    assert two.step.bytes == 90 * 4096 * 4 + 8 + 8
    assert four.step.bytes == 3 * (90 * 4096 * 4 + 8 + 8)
    assert two.sampled == Traffic(93, 90 * 4096 * 4 + 8 + 4 + 130 * 8)
    assert (two.whole_row, four.whole_row) == (77_440 * 4, 3 * 38_720 * 4)
    around = wire(config, 4, ring=True)
    assert (around.hops, around.step.bytes * 3) == (2, four.step.bytes * 2)
    # captured steps have 1, 2, 4, 8, 16, 24, .. rows
    captured = {3: 4, 8: 8, 9: 16, 40: 48, 257: 272}
    for streams, rows in captured.items():
        found = wire(config, 2, streams=streams, device="cuda").step.bytes
        assert found == rows * (two.step.bytes - 8) + 8
    three = wire(config, 2, streams=3, device="cuda", ring=True).step.bytes
    assert three == 3 * (two.step.bytes - 8) + 8
    many = wire(config, 2, streams=32)
    assert many.token_bytes == many.step.bytes / 32


def test_time_is_latency_times_exchanges_and_bytes_over_bandwidth():
    assert Traffic(100, 10**9).seconds(Link("l", 1e-3, 1e9)) == pytest.approx(1.1)
    assert Traffic(100, 10**9).seconds(Link("l", 1e-3, 1e9), hops=2) == pytest.approx(1.2)


def test_the_plan_tells_it_only_where_there_is_something_to_send():
    checkpoint = open_checkpoint("demo")
    assert plan(checkpoint).wire is None
    assert plan(checkpoint, ranks=9).wire is None  # refused: more ranks than heads
    document = json.loads(json.dumps(plan(checkpoint, ranks=3, ring=True).as_dict()))["wire"]
    assert document["ring"] is True
    assert [link["name"] for link in document["links"]] == [link.name for link in LINKS]
    assert all(0 < link["step_seconds"] < link["prompt_seconds"] for link in document["links"])
