"""Tools through the `openai` client, unchanged, against a real server process."""

import json

from tests.server.client_words import CALL, WEATHER, user


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
