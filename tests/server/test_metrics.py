"""What an operator can read: metrics under two names, one log line a request."""

import json

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.conftest import running
from tests.server.raw import CHAT, ask, body_of


@pytest.fixture(scope="module")
def told():
    """Metrics and log of a server that answered two requests and refused one."""
    with running() as server:
        assert ask(server, "POST", CHAT, body_of(say="one two three"))[0] == 200
        assert ask(server, "POST", CHAT, body_of(True, say="one two three"))[0] == 200
        assert ask(server, "POST", CHAT, b"{}")[0] == 400
        page = ask(server, "GET", "/metrics")[2].decode()
        yield page, [line for line in server.lines if line["event"] == "request"]


def samples(page):
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


ALIASES = [
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "time_to_first_token_seconds_count",
    "inter_token_latency_seconds_count",
    "e2e_request_latency_seconds_count",
    "request_queue_time_seconds_count",
    "request_prefill_time_seconds_count",
    "request_decode_time_seconds_count",
    "request_prompt_tokens_count",
    "request_generation_tokens_count",
    "prompt_tokens_total",
    "generation_tokens_total",
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
]


@pytest.mark.parametrize("name", ALIASES)
def test_dashboards_made_for_vllm_find_their_names(told, name):
    assert (f"vllm:{name}", "demo") in samples(told[0])


def test_figures_are_those_of_the_requests(told):
    page, lines = told
    values = samples(page)
    written = sum(line.get("completion_tokens", 0) for line in lines)
    assert values["vllm:generation_tokens_total", "demo"] == written > 0
    assert values["intarsia_completion_tokens_total", "demo"] == written
    assert values["intarsia_time_to_first_token_seconds_count", "demo"] == 2
    assert values["vllm:request_success_total", "demo", "stop"] == 2
    assert values["intarsia_http_requests_total", CHAT, "200"] == 2
    assert values["intarsia_http_requests_total", CHAT, "400"] == 1
    # every token but the first of each reply has a gap before it; the end of text is no event
    assert values["intarsia_inter_token_latency_seconds_count", "demo"] == written - 4
    assert values["vllm:spec_decode_num_accepted_tokens_per_pos_total", "0", "demo"] == 8


def test_a_request_is_one_line_without_its_text(told):
    _, lines = told
    assert [line["status"] for line in lines] == [200, 200, 400]
    assert [line.get("stream", False) for line in lines] == [False, True, False]
    first = lines[0]
    assert first["id"].startswith("chatcmpl-")
    assert {"prompt_tokens", "completion_tokens", "cache_reason", "finish", "total_ms"} <= set(first)
    assert lines[2]["code"]
    assert "three" not in json.dumps(lines)
