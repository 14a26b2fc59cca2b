"""Bodies nobody meant: every answer is a success or a named 4xx, and the service goes on."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from intarsia.server.wire.asked import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from tests.server.inside import Inside
from tests.server.raw import CHAT, ask

ROUTES = {
    CHAT: ChatRequest,
    "/v1/completions": CompletionRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
MANY = settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
TEXT = st.text(max_size=20) | st.sampled_from(
    ["<|user|>", "</think>", "<tool_call>", "\x00", "é" * 3, "(a+)+$"]
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | TEXT
    | st.sampled_from([0, 1, -1, 2**31, 1e308, "auto", "none", "required", "low"])
)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
SCHEMA = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["object", "string", "integer", "array", "null", 5]),
        "properties": st.dictionaries(TEXT, JSON, max_size=3),
        "required": st.lists(TEXT, max_size=2),
        "enum": st.lists(SCALARS, max_size=3),
        "pattern": TEXT,
        "$ref": st.sampled_from(["#", "#/$defs/a", "http://127.0.0.1/x"]),
        "items": JSON,
        "minLength": st.integers(-5, 10**12),
    },
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "system", "assistant", "tool", "developer", "x"])},
    optional={
        "content": TEXT
        | st.none()
        | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXT})),
        "reasoning_content": TEXT,
        "tool_calls": st.lists(
            st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": TEXT, "arguments": TEXT})}),
            max_size=2,
        ),
    },
)
TOOL = st.fixed_dictionaries(
    {
        "type": st.just("function"),
        "function": st.fixed_dictionaries(
            {"name": st.sampled_from(["a", "b", "c d"])},
            optional={"parameters": SCHEMA, "strict": st.booleans()},
        ),
    }
)
# Values that are nearly right get further than noise does.
NEARLY = {
    "messages": st.lists(MESSAGE, max_size=3),
    "tools": st.lists(TOOL, max_size=3),
    "tool_choice": st.sampled_from(
        ["none", "auto", "required", {"type": "function", "function": {"name": "a"}}]
    ),
    "response_format": st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "json_object", "json_schema"])},
        optional={"json_schema": st.fixed_dictionaries({"name": st.just("n"), "schema": SCHEMA})},
    ),
    "prompt": TEXT | st.lists(TEXT, max_size=3) | st.lists(st.integers(-1, 5000), max_size=5),
    "tokens": st.lists(st.integers(-1, 5000), max_size=5),
    "logit_bias": st.dictionaries(st.integers(-1, 5000).map(str), st.floats(-101, 101), max_size=3),
    "guided_json": SCHEMA,
    "guided_regex": TEXT,
    "guided_grammar": TEXT | st.just('start: "a" | start "b"'),
    "temperature": st.floats(0, 2),
    "n": st.integers(0, 3),
    "max_tokens": st.integers(0, 30),
    "logprobs": st.booleans() | st.integers(0, 3),
    "stream": st.booleans(),
    "stop": TEXT | st.lists(TEXT, max_size=2),
    "seed": st.integers(0, 2**64),
}


@pytest.fixture(scope="module")
def inside():
    one = Inside(queue=64)
    yield one
    one.close()


def check(status, headers, reply):
    assert status == 200 or 400 <= status < 500, reply
    if status != 200:
        error = reply["error"]
        assert error["message"]
        assert error["type"] in ("invalid_request_error", "rate_limit_error")
        assert error["param"] is None or isinstance(error["param"], str)
    elif headers["content-type"].startswith("text/event-stream"):
        assert reply.endswith(b"data: [DONE]\n\n")
        assert b'"error"' not in reply or b"generation_failed" in reply


def body_for(route, draw):
    known = ROUTES[route].__struct_fields__
    fields = {name: NEARLY.get(name, SCALARS) for name in known}
    body = draw(st.fixed_dictionaries({}, optional=fields))
    if "messages" in known and "prompt" not in body:
        body.setdefault("messages", [{"role": "user", "content": "hi"}])
    if draw(st.integers(0, 9)) == 0:
        body[draw(st.sampled_from([*known, "extra"]))] = draw(JSON)
    return body


@given(st.data())
@MANY
def test_bodies_that_are_nearly_right(inside, data):
    route = data.draw(st.sampled_from(sorted(ROUTES)))
    body = json.dumps(body_for(route, data.draw), allow_nan=True).encode()
    status, headers, reply = inside.ask("POST", route, body)
    # a reply may fail at a grammar's limit, which is declared
    if status == 500:
        assert reply["error"]["code"] == "generation_failed", reply
        assert "grammar" in reply["error"]["message"], reply
        return
    check(status, headers, reply)


@given(st.sampled_from(sorted(ROUTES)), st.binary(max_size=200) | JSON.map(lambda v: json.dumps(v).encode()))
@MANY
def test_bodies_that_are_noise(inside, route, body):
    check(*inside.ask("POST", route, body))


@given(
    st.sampled_from([*ROUTES, "/health", "/v1/models/x", "/metrics", "/", "/v1/%2e%2e/", "*"]),
    st.sampled_from(["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"]),
    st.dictionaries(
        st.sampled_from(["accept", "authorization", "x-api-key", "content-encoding", "content-type", "x"]),
        st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20),
        max_size=3,
    ),
)
@MANY
def test_methods_paths_and_headers(inside, path, method, headers):
    check(*inside.ask(method, path, b"", headers))


def test_the_service_is_empty_afterwards(inside):
    stats = inside.service.engine.stats()
    assert (stats.running, stats.waiting, inside.service.active) == (0, 0, 0)
    assert len(inside.service.grammars) <= 64


def test_cut_bodies_over_http(server):
    whole = json.dumps({"messages": [{"role": "user", "content": "hé"}], "stop": ["a"], "n": 1}).encode()
    for length in range(len(whole)):
        status, _, reply = ask(server, "POST", CHAT, whole[:length])
        assert (status, reply["error"]["code"]) == (400, "invalid_json")
    assert ask(server, "POST", CHAT, whole)[0] == 200
