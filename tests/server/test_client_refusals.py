"""What the `openai` client is told when a request cannot be served."""

import openai
import pytest

from tests.server.client_words import WEATHER, user


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
