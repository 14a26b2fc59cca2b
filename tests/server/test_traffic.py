"""The load generator against a server whose replies are known."""

import asyncio
import json

import pytest

from intarsia.cli.main import main
from intarsia.core.errors import UsageError
from intarsia.evidence.traffic.client import Server, ServerError
from intarsia.evidence.traffic.profiles import PROFILES, Conversation, TrafficSettings
from intarsia.evidence.traffic.run import Sample, measure, report, run_traffic, spread


@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_runs(server, profile):
    settings = TrafficSettings(profile=profile, clients=2, conversations=3, scale=0.1, tokens=20)
    seen = []
    told = run_traffic(Server.of(server.url), settings, lambda *place: seen.append(place))
    assert told["requests"] == 3 * PROFILES[profile].turns
    assert (told["failed"], told["errors"]) == (0, {})
    assert told["requests"] < told["completion_tokens"] <= 20 * told["requests"]
    assert told["time_to_first_token"]["p50"] > 0
    assert seen[-1] == (3, 3)
    if profile == "agent":
        assert told["cached_share"] > 0.3


def test_runs_ask_the_same():
    def bodies(number):
        conversation = Conversation(TrafficSettings(profile="agent"), number)
        asked = []
        for body in conversation.bodies():
            asked.append(json.dumps(body))
            conversation.answer("x")
        return asked

    assert bodies(1) == bodies(1)
    assert bodies(1) != bodies(2)
    shared = [json.loads(bodies(number)[0])["messages"][0] for number in (1, 2)]
    assert shared[0] == shared[1]


def test_failures_are_counted_not_raised(server):
    settings = TrafficSettings(profile="long", clients=1, conversations=1, scale=10)
    told = run_traffic(Server.of(server.url), settings)
    assert (told["requests"], told["failed"]) == (1, 1)
    assert next(iter(told["errors"])).startswith("status 400")
    body = {"messages": [{"role": "user", "content": '{"say": "a b", "fail": 3}'}], "stream": True}
    sample, _ = asyncio.run(measure(Server.of(server.url), body))
    assert "told to fail" in sample.error


def test_a_server_that_is_not_there_is_told():
    with pytest.raises(ServerError):
        run_traffic(Server.of("http://127.0.0.1:9"), TrafficSettings())
    for url in ("https://127.0.0.1", "127.0.0.1:8000", "http://"):
        with pytest.raises(UsageError):
            Server.of(url)


def test_figures_of_known_samples():
    samples = [
        Sample(
            0.0, first=1.0, last=3.0, gaps=[1.0, 1.0], prompt_tokens=10, cached_tokens=5, completion_tokens=5
        ),
        Sample(0.0, error="x", status=429),
    ]
    told = report(samples, 2.0, TrafficSettings(), "m")
    assert told["tokens_per_second"] == 2.5
    assert told["time_to_first_token"]["max"] == 1.0
    assert told["time_per_token"]["p50"] == 0.5
    assert told["cached_share"] == 0.5
    assert told["accepted_share"] is None
    assert (told["failed"], told["errors"]) == (1, {"x": 1})


def test_percentiles_are_observed_values():
    assert spread([]) is None
    assert spread([3.0, 1.0, 2.0]) == {"p50": 2.0, "p90": 3.0, "p99": 3.0, "max": 3.0}


def test_the_command(server, capsys):
    words = ["bench", "serve", "--url", server.url, "--conversations", "1", "--clients", "1", "--tokens", "4"]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["requests"] == 3
    assert main(words) == 0
    assert "tokens/s" in capsys.readouterr().out
    assert main(["bench", "serve", "--url", "http://127.0.0.1:9"]) == 1
