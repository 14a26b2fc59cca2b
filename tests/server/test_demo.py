"""The demo model behind `intarsia serve`, asked with the `openai` client."""

import json
import threading

import openai
import pytest
import torch

from intarsia import api
from intarsia.core.config import GenerationSettings
from tests.server.conftest import running
from tests.server.raw import CHAT, ask, connect, post_bytes

ADD = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Computes a sum",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
    },
}
PLAIN = {"chat_template_kwargs": {"enable_thinking": False}}
QUESTIONS = ["What is 12 + 5?", "Hello!", "Tell me a story about a fox.", "Sort: 5, 3, 9."]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    settings = tmp_path_factory.mktemp("demo") / "serve.toml"
    settings.write_text("threads = 1\nkept-every = 128\n")
    with running(
        *("intarsia", "serve", "demo", "--port", "0", "--config", str(settings)),
        *("--max-num-seqs", "4", "--max-model-len", "4096", "--served-model-name", "small"),
    ) as one:
        yield one


@pytest.fixture(scope="module")
def client(demo):
    with openai.OpenAI(base_url=f"{demo.url}/v1", api_key="none", max_retries=0, timeout=60) as one:
        yield one


def chat(client, text, **options):
    options.setdefault("max_tokens", 24)
    options.setdefault("temperature", 0)
    return client.chat.completions.create(
        model="small", messages=[{"role": "user", "content": text}], **options
    )


def whole(reply):
    message = reply.choices[0].message
    return message.reasoning_content, message.content


def test_it_is_served_under_its_name_with_its_window(client):
    (model,) = client.models.list().data
    assert (model.id, model.max_model_len, model.root) == ("small", 4096, "demo")


def test_replies_are_those_of_one_stream_alone(client):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        model = api.load_text_model("demo")
        settings = GenerationSettings(temperature=0, max_tokens=24)
        alone = {
            text: tuple(model.chat([{"role": "user", "content": text}], settings).result.tokens)
            for text in QUESTIONS
        }
    finally:
        torch.set_num_threads(threads)
    told = {}

    def one(text):
        told[text] = chat(client, text, extra_body={"return_token_ids": True}).choices[0].token_ids

    workers = [threading.Thread(target=one, args=(text,)) for text in QUESTIONS]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert {text: tuple(ids) for text, ids in told.items()} == alone


def test_drafts_change_no_token_and_are_counted(client):
    options = {"temperature": 0.8, "seed": 7, "max_tokens": 40}
    drafted = chat(client, QUESTIONS[0], **options)
    plain = chat(client, QUESTIONS[0], extra_body={"draft": False}, **options)
    assert whole(drafted) == whole(plain)
    assert plain.usage.completion_tokens_details.drafted_tokens == []


def test_a_stream_tells_the_same(client):
    reply = chat(client, QUESTIONS[2])
    parts = [chunk.choices[0].delta for chunk in chat(client, QUESTIONS[2], stream=True) if chunk.choices]
    assert "".join(part.content or "" for part in parts) == reply.choices[0].message.content


def test_tools(client):
    reply = chat(
        client,
        "Use the calculator: 12 + 5",
        tools=[ADD],
        tool_choice="required",
        extra_body=PLAIN,
        max_tokens=60,
    )
    assert reply.choices[0].finish_reason == "tool_calls"
    (call, *_) = reply.choices[0].message.tool_calls
    assert call.function.name == "calculate"
    assert isinstance(json.loads(call.function.arguments)["expression"], str)


@pytest.mark.parametrize("draft", [True, False])
def test_json_schema(client, draft):
    schema = {
        "type": "object",
        "properties": {"x": {"type": "integer"}, "ok": {"type": "boolean"}},
        "required": ["x", "ok"],
        "additionalProperties": False,
    }
    asked = {"type": "json_schema", "json_schema": {"name": "pair", "schema": schema}}
    reply = chat(
        client, "Hello!", response_format=asked, extra_body={**PLAIN, "draft": draft}, max_tokens=120, seed=3
    )
    assert reply.choices[0].finish_reason == "stop"
    told = json.loads(reply.choices[0].message.content)
    assert isinstance(told["x"], int)
    assert isinstance(told["ok"], bool)


def test_a_format_holds_after_thinking(client):
    reply = chat(client, QUESTIONS[0], extra_body={"guided_regex": "(yes|no), [0-9]{2}"}, max_tokens=60)
    assert reply.choices[0].message.content[:3] in ("yes", "no,")
    assert reply.choices[0].message.reasoning_content


def test_a_thinking_budget_closes_the_block(client):
    reply = chat(client, QUESTIONS[0], extra_body={"thinking_budget": 4}, max_tokens=40)
    free = chat(client, QUESTIONS[0], max_tokens=40)
    assert free.usage.completion_tokens_details.reasoning_tokens > 8
    assert reply.usage.completion_tokens_details.reasoning_tokens <= 8
    assert free.choices[0].message.reasoning_content.startswith(reply.choices[0].message.reasoning_content)


def test_logprobs_are_probabilities_and_greedy_takes_the_likeliest(client):
    reply = chat(client, QUESTIONS[1], logprobs=True, top_logprobs=3, max_tokens=6)
    content = reply.choices[0].logprobs.content
    assert len(content) == 6
    for entry in content:
        assert entry.token == entry.top_logprobs[0].token
        assert 0 >= entry.top_logprobs[0].logprob >= entry.top_logprobs[1].logprob
    scored = client.completions.create(
        model="small", prompt="Once upon a time", echo=True, logprobs=1, max_tokens=0
    )
    values = scored.choices[0].logprobs.token_logprobs
    assert values[0] is None
    assert all(value < 0 for value in values[1:])


def test_seeds_and_choices(client):
    first = chat(client, QUESTIONS[2], n=2, temperature=1.5, seed=1)
    again = chat(client, QUESTIONS[2], n=2, temperature=1.5, seed=1)
    texts = [choice.message.content for choice in first.choices]
    assert texts == [choice.message.content for choice in again.choices]
    assert texts[0] != texts[1]


def test_a_prompt_sent_twice_and_a_shared_beginning_are_reused_with_the_same_text(client):
    """A shared beginning of more than 2,000 tokens, thinking on and off."""
    rules = "Answer shortly and kindly. " * 400
    messages = [{"role": "system", "content": rules}, {"role": "user", "content": QUESTIONS[0]}]

    def say(messages, **options):
        return client.chat.completions.create(
            model="small", messages=messages, max_tokens=12, temperature=0, **options
        )

    cold = say(messages, extra_body={"cache_salt": "nobody"})
    assert cold.usage.prompt_tokens_details.cached_tokens == 0
    first, second = say(messages), say(messages)
    assert second.usage.prompt_tokens > second.usage.prompt_tokens_details.cached_tokens > 2000
    assert "resumed" in second.usage.prompt_tokens_details.cache_reason
    assert whole(first) == whole(second) == whole(cold)
    other = say([messages[0], {"role": "user", "content": QUESTIONS[1]}])
    assert other.usage.prompt_tokens_details.cached_tokens > 1900
    cold = say([messages[0], {"role": "user", "content": QUESTIONS[1]}], extra_body={"cache_salt": "none"})
    assert whole(other) == whole(cold)
    plain = say(messages, extra_body=PLAIN)
    assert plain.usage.prompt_tokens_details.cached_tokens > 1900
    assert whole(plain) == whole(say(messages, extra_body={**PLAIN, "cache_salt": "none"}))


def test_weights_are_told_module_by_module(demo):
    told = ask(demo, "GET", "/weights")[2]
    rows = told["data"]
    assert all(row["stored"] and row["run"] and row["kernel"] and row["reason"] for row in rows)
    assert {row["stored"] for row in rows} == {"BF16", "F32"}
    assert {row["operation"] for row in rows} >= {"linear", "experts", "kda_step", "norm"}
    assert told["kv_cache_dtype"] == "auto"


def test_leaving_gives_back_every_page(demo, client):
    body = json.dumps(
        {"messages": [{"role": "user", "content": "A long story."}], "stream": True, "ignore_eos": True}
    ).encode()
    with connect(demo) as sock:
        sock.sendall(post_bytes(body))
        assert b"200 OK" in sock.recv(100)
    line = demo.wait_for("request", status=499)
    assert line["finish"] == "cancelled"
    health = ask(demo, "GET", "/health")[2]["engine"]
    assert (health["running"], health["waiting"]) == (0, 0)
    held = health["pages"] - health["pages_free"]
    assert held * health["page_tokens"] <= health["kept_states"] * 4096
    assert (
        ask(demo, "POST", CHAT, b'{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}')[0]
        == 200
    )


def test_errors_of_the_engine_are_the_clients_where_they_are(client):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, "word " * 5000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, "Hi", extra_body={"stop_token_ids": [4096]})
    assert caught.value.param == "stop_token_ids"
