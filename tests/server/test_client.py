"""The `openai` client, unchanged, against a real server process."""

import json

import openai
import pydantic
import pytest

from tests.server.client_words import user


def test_models(client):
    models = client.models.list().data
    assert [model.id for model in models] == ["demo", "demo-alias"]
    assert models[0].max_model_len == 4096
    assert client.models.retrieve("demo-alias").id == "demo-alias"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.code == "model_not_found"


def test_chat_keeps_reasoning_apart(client):
    reply = client.chat.completions.create(model="demo", messages=user(say="Four.", think="Two and two"))
    message = reply.choices[0].message
    assert (message.content, message.reasoning_content) == ("Four.", "Two and two")
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.usage.prompt_tokens_details.cache_reason


def test_thinking_can_be_switched_off(client):
    for extra in (
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {"thinking": False}},
    ):
        reply = client.chat.completions.create(model="demo", messages=user(say="Four."), extra_body=extra)
        message = reply.choices[0].message
        assert (message.content, message.reasoning_content) == ("Four.", None)


def test_a_stream_tells_the_same_as_a_whole_reply(client):
    messages = user(say="  One, two, three.\n", think="Counting")
    whole = client.chat.completions.create(model="demo", messages=messages)
    stream = client.chat.completions.create(
        model="demo", messages=messages, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == whole.choices[0].message.content
    reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert reasoning == whole.choices[0].message.reasoning_content
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == [
        "stop"
    ]
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_json_schema_is_enforced(client):
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    asked = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema, "strict": True}}
    reply = client.chat.completions.create(
        model="demo", messages=user(say="no JSON at all"), response_format=asked
    )
    assert set(json.loads(reply.choices[0].message.content)) == {"name", "age"}
    good = '{"name": "Ada", "age": 36}'
    reply = client.chat.completions.create(model="demo", messages=user(say=good), response_format=asked)
    assert reply.choices[0].message.content == good


@pytest.mark.parametrize(
    ("extra", "said", "expected"),
    [
        ({"response_format": {"type": "json_object"}}, '{"a": [1]}', '{"a": [1]}'),
        ({"guided_regex": "[0-9]{3}"}, "12x", "120"),
        ({"guided_choice": ["red", "green"]}, "green", "green"),
        ({"structured_outputs": {"grammar": 'start: "a" "b"'}}, "zz", "ab"),
        ({"structured_outputs": {"json": '{"const": 7}'}}, "8", "7"),
    ],
)
def test_other_formats(client, extra, said, expected):
    reply = client.chat.completions.create(model="demo", messages=user(say=said), extra_body=extra)
    assert reply.choices[0].message.content == expected


def test_logprobs(client):
    reply = client.chat.completions.create(
        model="demo", messages=user(say="ab cd"), logprobs=True, top_logprobs=2, max_tokens=40
    )
    content = reply.choices[0].logprobs.content
    assert len(content) == reply.usage.completion_tokens - 1  # the end of text is told by the finish reason
    assert all(entry.logprob == -0.5 and len(entry.top_logprobs) == 2 for entry in content)
    assert "".join(entry.token for entry in content).endswith("ab cd")
    chunks = client.chat.completions.create(
        model="demo", messages=user(say="ab cd"), logprobs=True, top_logprobs=2, stream=True
    )
    streamed = [e.token for c in chunks if c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    assert streamed == [entry.token for entry in content]


def test_choices(client):
    reply = client.chat.completions.create(model="demo", messages=user(say="x"), n=3)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    assert {choice.message.content for choice in reply.choices} == {"x"}
    one = client.chat.completions.create(model="demo", messages=user(say="x"))
    assert reply.usage.prompt_tokens == one.usage.prompt_tokens
    assert reply.usage.completion_tokens == 3 * one.usage.completion_tokens
    ends = {}
    for chunk in client.chat.completions.create(model="demo", messages=user(say="x"), n=3, stream=True):
        if chunk.choices[0].finish_reason:
            ends[chunk.choices[0].index] = chunk.choices[0].finish_reason
    assert ends == {0: "stop", 1: "stop", 2: "stop"}


def test_stop_strings_and_limits(client):
    reply = client.chat.completions.create(
        model="demo", messages=user(say="one two three", think=""), stop=[" three"]
    )
    assert reply.choices[0].message.content == "one two"
    assert reply.choices[0].stop_reason == " three"
    reply = client.chat.completions.create(
        model="demo", messages=user(say="one two three four five six"), max_completion_tokens=3
    )
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage.completion_tokens == 3


def test_the_clients_own_helpers(client):
    class Person(pydantic.BaseModel):
        name: str
        age: int

    said = user(say='{"name": "Ada", "age": 36}')
    parsed = client.chat.completions.parse(model="demo", messages=said, response_format=Person)
    assert parsed.choices[0].message.parsed == Person(name="Ada", age=36)
    tool = openai.pydantic_function_tool(Person, name="person")
    call = "<tool_call>person<arg_key>name</arg_key><arg_value>Ada</arg_value>"
    call += "<arg_key>age</arg_key><arg_value>36</arg_value></tool_call>"
    with client.chat.completions.stream(model="demo", messages=user(say=call), tools=[tool]) as stream:
        final = stream.get_final_completion()
    (made,) = final.choices[0].message.tool_calls
    assert made.function.parsed_arguments == Person(name="Ada", age=36)


def test_completions(client):
    reply = client.completions.create(model="demo", prompt=["ab", "cd"], max_tokens=50, n=2)
    assert [choice.text for choice in reply.choices] == ["You said: ab"] * 2 + ["You said: cd"] * 2
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    tokens = client.completions.create(
        model="demo", prompt=[300, 301], max_tokens=50, extra_body={"return_token_ids": True}
    )
    assert tokens.choices[0].prompt_token_ids == [300, 301]
    streamed = client.completions.create(model="demo", prompt="ab", max_tokens=50, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == "You said: ab"
    assert client.completions.create(model="demo", prompt="ab").usage.completion_tokens <= 16


def test_echo_with_logprobs_scores_a_prompt(client):
    reply = client.completions.create(model="demo", prompt="ab cd", echo=True, logprobs=1, max_tokens=0)
    choice = reply.choices[0]
    assert choice.text == "ab cd"
    assert "".join(choice.logprobs.tokens) == "ab cd"
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value == -0.5 for value in choice.logprobs.token_logprobs[1:])
    assert choice.logprobs.text_offset[0] == 0


def test_prompt_logprobs(client):
    reply = client.completions.create(
        model="demo", prompt="ab cd", max_tokens=1, extra_body={"prompt_logprobs": 2}
    )
    rows = reply.choices[0].prompt_logprobs
    assert rows[0] is None
    assert all(
        {"logprob", "rank", "decoded_token"} == set(entry) for row in rows[1:] for entry in row.values()
    )
    chat = client.chat.completions.create(
        model="demo", messages=user(say="x"), max_tokens=1, extra_body={"prompt_logprobs": 0}
    )
    assert len(chat.prompt_logprobs) == chat.usage.prompt_tokens


def test_a_prompt_sent_twice_is_reused_and_says_so(client):
    messages = user("again " * 200)
    first = client.chat.completions.create(model="demo", messages=messages)
    second = client.chat.completions.create(model="demo", messages=messages)
    assert second.usage.prompt_tokens_details.cached_tokens > 0
    assert second.choices[0].message.content == first.choices[0].message.content


def test_tokenize_says_what_runs(client):
    reply = client.post("/../tokenize", cast_to=dict, body={"prompt": "ab cd", "return_token_strs": True})
    assert "".join(reply["token_strs"]) == "ab cd"
    back = client.post("/../detokenize", cast_to=dict, body={"tokens": reply["tokens"]})
    assert back == {"prompt": "ab cd"}
    messages = user(say="x")
    told = client.post("/../tokenize", cast_to=dict, body={"messages": messages})
    run = client.chat.completions.create(
        model="demo", messages=messages, extra_body={"return_token_ids": True}
    )
    assert run.prompt_token_ids == told["tokens"]
    assert told["count"] == run.usage.prompt_tokens
