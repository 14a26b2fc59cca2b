"""The `openai` client, unchanged, against a real server process."""

import json

import openai
import pydantic
import pytest

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
CALL = (
    "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rom</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
)


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=30) as one:
        yield one


def user(text="", **order):
    return [{"role": "user", "content": json.dumps(order) if order else text}]


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


def test_a_tool_call(client):
    reply = client.chat.completions.create(
        model="demo", messages=user(say=f"I look.\n{CALL}"), tools=[WEATHER], tool_choice="auto"
    )
    choice = reply.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    (call,) = choice.message.tool_calls
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments) == {"city": "Rom", "days": 3}
    followed = [
        *user(say="x"),
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
        *user(say="It is sunny."),
    ]
    reply = client.chat.completions.create(model="demo", messages=followed, tools=[WEATHER])
    assert reply.choices[0].message.content == "It is sunny."


def test_streamed_tool_calls_are_numbered(client):
    chunks = client.chat.completions.create(
        model="demo", messages=user(say=f"{CALL}\n{CALL}"), tools=[WEATHER], stream=True
    )
    calls, ends = [], []
    for chunk in chunks:
        calls += chunk.choices[0].delta.tool_calls or []
        ends += [chunk.choices[0].finish_reason] if chunk.choices[0].finish_reason else []
    assert [call.index for call in calls] == [0, 1]
    assert len({call.id for call in calls}) == 2
    assert all(json.loads(call.function.arguments) == {"city": "Rom", "days": 3} for call in calls)
    assert ends == ["tool_calls"]


def test_one_call_where_only_one_may_be_made(client):
    for stream in (False, True):
        reply = client.chat.completions.create(
            model="demo",
            messages=user(say=f"{CALL}{CALL} and more " * 20, delay=0.001),
            tools=[WEATHER],
            parallel_tool_calls=False,
            stream=stream,
        )
        if stream:
            deltas = [chunk.choices[0] for chunk in reply]
            calls = [call for choice in deltas for call in choice.delta.tool_calls or []]
            assert deltas[-1].finish_reason == "tool_calls"
        else:
            calls, choice = reply.choices[0].message.tool_calls, reply.choices[0]
            assert choice.finish_reason == "tool_calls"
            assert choice.message.content is None
            assert reply.usage.completion_tokens < 200
        assert len(calls) == 1


def test_a_call_to_no_offered_tool_stays_text(client):
    text = CALL.replace("weather", "rm")
    reply = client.chat.completions.create(model="demo", messages=user(say=text), tools=[WEATHER])
    assert reply.choices[0].message.content == text
    assert reply.choices[0].message.tool_calls is None
    assert reply.choices[0].finish_reason == "stop"


def test_a_tool_that_must_be_called_is_called(client):
    """With the arguments its schema requires, whatever the model would say."""
    schema = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"]}
    tool = {"type": "function", "function": {"name": "weather", "parameters": schema}}
    named = {"type": "function", "function": {"name": "weather"}}
    other = {"type": "function", "function": {"name": "now"}}
    for choice in ("required", named):
        reply = client.chat.completions.create(
            model="demo", messages=user(say="I will not."), tools=[tool, other], tool_choice=choice
        )
        assert reply.choices[0].finish_reason == "tool_calls"
        calls = reply.choices[0].message.tool_calls
        assert calls
        if choice is named:
            assert [call.function.name for call in calls] == ["weather"]
            assert json.loads(calls[0].function.arguments)["unit"] in ("C", "F")


def test_tool_choice_none_leaves_text_alone(client):
    reply = client.chat.completions.create(
        model="demo", messages=user(say=CALL), tools=[WEATHER], tool_choice="none"
    )
    assert reply.choices[0].message.content == CALL


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


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": 1e-9}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"n": 65}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": 1 << 40}, "max_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_completion_tokens"),
        ({"seed": -1}, "seed"),
        ({"seed": 1 << 64}, "seed"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "chat_template_kwargs.chat_template"),
        ({"chat_template_kwargs": {"enable_thinking": 1}}, "chat_template_kwargs.enable_thinking"),
        ({"chat_template": "x"}, "chat_template"),
        ({"min_tokens": 5}, "min_tokens"),
        ({"store": True}, "store"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex"),
        ({"guided_regex": "(?<=a)b"}, "guided_regex"),
        ({"guided_grammar": "start: nothing"}, "guided_grammar"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"if": {}}}}},
            "response_format.json_schema.schema",
        ),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ],
)
def test_a_refusal_names_the_field(client, extra, field):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="demo", messages=user(say="x"), extra_body=extra)
    assert caught.value.body["param"] == field
    assert caught.value.body["type"] == "invalid_request_error"
    assert caught.value.body["message"]


def test_an_unknown_model_and_a_prompt_beyond_the_window(client):
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt", messages=user(say="x"))
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model="demo", messages=user("word " * 5000))
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "messages")
    assert long.value.body["message"].startswith("The field 'messages' cannot be used: found ")
    with pytest.raises(openai.BadRequestError) as tokens:
        client.completions.create(model="demo", prompt=[5000])
    assert tokens.value.param == "prompt"


def test_a_reply_that_fails_is_an_error(client):
    with pytest.raises(openai.InternalServerError) as whole:
        client.chat.completions.create(model="demo", messages=user(say="long enough", fail=2))
    assert whole.value.code == "generation_failed"
    with pytest.raises(openai.APIError, match="told to fail"):
        list(client.chat.completions.create(model="demo", messages=user(say="long", fail=3), stream=True))
    assert client.chat.completions.create(model="demo", messages=user(say="x")).choices


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
