"""The engine as a thread: submitting, refusing, draining, and what it tells about itself."""

import threading
from dataclasses import replace

import pytest

from intarsia.core.errors import UsageError
from intarsia.engine.errors import EngineClosedError, QueueFullError, RequestError, TooLongError
from intarsia.engine.events import Finished, Tokens
from intarsia.engine.requests import Thinking
from intarsia.engine.settings import StreamSettings
from intarsia.groups.errors import RankLostError
from tests.engine.hash_network import VOCAB, HashNetwork
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


def ids_of(handle) -> list[int]:
    return [token for event in handle.events() if isinstance(event, Tokens) for token in event.ids]


def test_a_thread_serves_readers_and_ends_when_drained():
    network = HashNetwork()
    engine = engine_of(network).start()
    requests = [request_of(f"r{i}", prompt_of(i, 20 + i), sampling=SAMPLED) for i in range(8)]
    handles = [engine.submit(request) for request in requests]
    replies: dict[int, list[int]] = {}

    def read(index):
        replies[index] = ids_of(handles[index])

    readers = [threading.Thread(target=read, args=(index,)) for index in range(8)]
    for reader in readers:
        reader.start()
    engine.close(timeout=60)
    for reader in readers:
        reader.join(60)
    assert [replies[index] for index in range(8)] == [expected(request) for request in requests]
    assert not engine.alive
    with pytest.raises(EngineClosedError):
        engine.submit(requests[0])
    assert_clean(engine)


def test_closing_without_draining_cancels_what_runs_and_what_waits():
    engine = engine_of(settings=replace(SMALL, streams=1))
    outcomes = [submit(engine, request_of(f"r{i}", prompt_of(i, 20)))[1] for i in range(3)]
    engine.step()
    engine.close()
    assert engine.step()
    engine.close(drain=False)
    run(engine)
    assert [outcome.reason for outcome in outcomes] == ["cancelled"] * 3
    assert_clean(engine)


def test_a_reader_that_fails_is_a_reader_that_left():
    engine = engine_of()
    events = []

    def broken(event):
        events.append(event)
        raise OSError("gone")

    engine.submit(request_of("r", prompt_of(1, 20), max_tokens=500), broken)
    (other,) = serve(engine, [request_of("o", prompt_of(2, 20))])
    assert other.ids == expected(request_of("o", prompt_of(2, 20)))
    assert events[-1].reason == "cancelled"
    assert len(events) <= 3
    assert_clean(engine)


def test_an_engine_that_dies_tells_its_readers_and_the_log_once(caplog):
    network = HashNetwork()
    engine = engine_of(network)
    handle = engine.submit(request_of("r", prompt_of(1, 20)))

    def interrupt(*_):
        raise KeyboardInterrupt("stop")

    network.hidden = interrupt
    engine.start()  # were its thread to end with the exception, pytest would say so
    events = list(handle.events())
    engine.close(timeout=60)
    assert isinstance(events[-1], Finished)
    assert events[-1].error == "the engine stopped: stop"
    with pytest.raises(EngineClosedError, match="stop"):
        engine.submit(request_of("again", prompt_of(1, 20)))
    shown = [record.message for record in caplog.records if record.exc_info]
    assert shown == ["the engine stopped: stop"]


def test_what_goes_wrong_while_a_dead_engines_readers_are_told_is_not_kept_back(monkeypatch):
    seen = []
    monkeypatch.setattr(threading, "excepthook", lambda told: seen.append(str(told.exc_value)))
    network = HashNetwork()
    engine = engine_of(network)
    engine.submit(request_of("r", prompt_of(1, 20)))

    def interrupt(*_):
        raise KeyboardInterrupt("stop")

    def fail(_):
        raise RuntimeError("nobody can be told")

    network.hidden = interrupt
    engine._abandon = fail
    engine.start()
    engine.close(timeout=60)
    assert seen == ["nobody can be told"]


@pytest.mark.parametrize(
    ("error", "shown"), [(RankLostError("rank 0", found="nobody"), False), (RuntimeError("broken"), True)]
)
@pytest.mark.parametrize("requests", [1, 2])
def test_where_a_rank_was_lost_is_left_to_the_engine_to_tell(caplog, error, shown, requests):
    """It stops for that. Of any other failure the step of several and each request's own are shown."""
    network = HashNetwork()
    engine = engine_of(network)
    for index in range(requests):
        submit(engine, request_of(f"r{index}", prompt_of(index, 20)))

    def fail(*_):
        raise error

    network.hidden = fail
    run(engine)
    failures = [record for record in caplog.records if "failed" in record.message]
    assert len(failures) == requests + (requests > 1)
    assert len([record for record in failures if record.exc_info]) == (len(failures) if shown else 0)


def test_a_full_queue_says_when_to_come_again():
    engine = engine_of(settings=replace(SMALL, streams=1, queue=2))
    for index in range(2):
        submit(engine, request_of(f"r{index}", prompt_of(index, 10)))
    with pytest.raises(QueueFullError) as refusal:
        submit(engine, request_of("more", prompt_of(3, 10)))
    assert 1 <= refusal.value.retry_after <= 60
    engine.step()
    submit(engine, request_of("now", prompt_of(3, 10)))
    run(engine)


@pytest.mark.parametrize(
    ("changes", "error", "where"),
    [
        ({"tokens": (1, VOCAB)}, RequestError, "prompt"),
        ({"tokens": (-1,)}, RequestError, "prompt"),
        ({"tokens": (True,)}, RequestError, "prompt"),
        ({"stop_ids": (VOCAB,)}, RequestError, "stop_ids"),
        ({"logit_bias": {VOCAB: 1.0}}, RequestError, "logit_bias"),
        ({"thinking": Thinking(close_id=VOCAB)}, RequestError, "thinking"),
        ({"stop": ("x",)}, RequestError, "stop"),
        ({"tokens": (1,) * 1024, "max_tokens": None}, TooLongError, "prompt"),
        ({"tokens": (1,) * 1000, "max_tokens": 25}, TooLongError, "max_tokens"),
    ],
)
def test_what_cannot_be_served_is_refused_at_once(changes, error, where):
    engine = engine_of()
    with pytest.raises(error) as refusal:
        engine.submit(replace(request_of("r", (1, 2)), **changes))
    assert refusal.value.where == where
    assert engine.loop.idle


def test_a_reply_without_a_limit_fills_the_window():
    engine = engine_of(settings=replace(SMALL, window=128, pool_tokens=256))
    (outcome,) = serve(engine, [request_of("r", prompt_of(1, 100), max_tokens=None)])
    assert len(outcome.ids) == 28


def test_statistics_add_up():
    engine = engine_of()
    request = request_of("r", prompt_of(1, 100))
    serve(engine, [request])
    serve(engine, [replace(request, id="s"), request_of("t", prompt_of(2, 30))])
    stats = engine.stats()
    assert stats.requests_finished == {"length": 3}
    assert stats.prompt_tokens == 230
    assert stats.cached_tokens == 64
    assert stats.completion_tokens == 36
    assert (stats.running, stats.waiting, stats.step_streams) == (0, 0, ())
    assert (stats.kept_states, stats.kept_hits, stats.kept_misses) == (1, 1, 2)
    assert stats.pages - stats.pages_free == 2
    assert stats.drafted[0] >= stats.accepted[0] > 0


def test_a_step_in_progress_names_its_streams():
    seen = []
    network = HashNetwork()
    clock = iter(range(1, 100000))
    engine = engine_of(network, clock=lambda: float(next(clock)))
    run_rows = network.hidden

    def watch(rows, state):
        seen.append(engine.stats())
        return run_rows(rows, state)

    network.hidden = watch
    serve(engine, [request_of("a", prompt_of(1, 10), max_tokens=1), request_of("b", prompt_of(2, 10))])
    assert seen[0].step_streams == ("a", "b")
    assert seen[0].step_age_seconds > 0
    assert engine.stats().step_age_seconds == 0


def test_settings_are_checked():
    for changes in (
        {"chunk": 100},
        {"prompt_rows": 0},
        {"kept_every": 32},
        {"streams": 0},
        {"pool_tokens": 64, "state_bytes": 64},
        {"copy_drafts": -1},
    ):
        with pytest.raises(UsageError):
            StreamSettings(**changes)
