"""Requests as the engine is asked: fields, prompts, places to keep, refusals."""

import json

import pytest

from intarsia.engine.sampling import seed_from
from intarsia.server.errors import InvalidRequestError
from intarsia.server.translate.chat import plan_chat
from intarsia.server.translate.completions import plan_completions
from intarsia.server.wire.asked import ChatRequest, CompletionRequest
from intarsia.server.wire.body import read
from tests.server.inside import Inside

TOOL = {"type": "function", "function": {"name": "t", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture(scope="module")
def service():
    inside = Inside()
    yield inside.service
    inside.close()


def planned(service, messages=None, **fields):
    messages = messages or [{"role": "user", "content": "hi"}]
    body = json.dumps({"messages": messages, **fields}).encode()
    return plan_chat(service, read(body, ChatRequest), "id")


def asked(service, messages=None, **fields):
    return planned(service, messages, **fields).choices[0].request


def completion(service, **fields):
    return plan_completions(service, read(json.dumps(fields).encode(), CompletionRequest), "id")


def test_what_is_not_asked_is_the_checkpoints(service):
    sampling = asked(service).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.7, 0.95, 0)
    sampling = asked(service, temperature=0, top_k=-1, top_p=0.5, seed=2**64 - 1).sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.seed) == (0, 0.5, 0, 2**64 - 1)


def test_every_field_arrives(service):
    request = asked(
        service,
        max_tokens=5,
        stop="x",
        stop_token_ids=[3],
        ignore_eos=True,
        include_stop_str_in_output=True,
        logprobs=True,
        top_logprobs=2,
        prompt_logprobs=1,
        presence_penalty=1,
        frequency_penalty=-1,
        repetition_penalty=1.5,
        logit_bias={"7": -5},
        draft=False,
        priority=-3,
        loop_guard=True,
        thinking_budget=9,
        cache_salt="s",
    )
    assert (request.max_tokens, request.stop, request.stop_ids) == (5, ("x",), (3,))
    assert (request.ignore_eos, request.include_stop, request.draft, request.loop_guard) == (
        True,
        True,
        False,
        True,
    )
    assert (request.logprobs, request.prompt_logprobs, request.priority) == (2, 1, -3)
    penalties = request.penalties
    assert (penalties.presence, penalties.frequency, penalties.repetition) == (1, -1, 1.5)
    assert dict(request.logit_bias) == {7: -5}
    assert (request.thinking.budget, request.cache_salt) == (9, "s")


def test_choices_have_seeds_of_their_own(service):
    requests = [choice.request for choice in planned(service, n=3, seed=5).choices]
    assert [request.sampling.seed for request in requests] == [5, 6, 7]
    requests = [choice.request for choice in planned(service, n=2).choices]
    assert requests[0].sampling.seed == seed_from(requests[0].tokens)
    grammars = [
        choice.request.grammar
        for choice in planned(service, n=2, response_format={"type": "json_object"}).choices
    ]
    assert grammars[0] is not grammars[1]


def test_thinking(service):
    text = service.model.text.tokenizer
    thinking = asked(service).thinking
    assert thinking.inside
    assert (thinking.open_id, thinking.close_id) == (text.token("<think>"), text.token("</think>"))
    assert text.decode(thinking.forced_close) == "\n</think>\n\n"
    # nothing stands between the block and a format
    formatted = asked(service, response_format={"type": "json_object"}).thinking
    assert text.decode(formatted.forced_close) == "\n</think>"
    assert not asked(service, reasoning_effort="none").thinking.inside
    assert not asked(service, chat_template_kwargs={"thinking": False}).thinking.inside


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        (
            {"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "none"},
            "chat_template_kwargs",
        ),
        ({"chat_template_kwargs": {"enable_thinking": True, "thinking": False}}, "chat_template_kwargs"),
        (
            {"chat_template_kwargs": {"reasoning_effort": "low"}, "reasoning_effort": "high"},
            "reasoning_effort",
        ),
        ({"chat_template_kwargs": {"reasoning_effort": "huge"}}, "chat_template_kwargs.reasoning_effort"),
    ],
)
def test_what_the_template_leaves_out_and_contradictions_are_refused(service, fields, named):
    with pytest.raises(InvalidRequestError) as caught:
        planned(service, **fields)
    assert caught.value.field == named


def places(service, request):
    """The text before each place that is worth keeping."""
    decode = service.model.text.tokenizer
    names = service.model.controls
    return [
        "".join(names.get(token) or decode.decode([token]) for token in request.tokens[:place])
        for place in request.keep_at
    ]


def test_states_are_worth_keeping_where_conversations_part(service):
    system = {"role": "system", "content": "Be kind."}
    talk = [
        system,
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    request = asked(service, talk)
    begin = "[gMASK]<sop><|system|>Be kind."
    turns = begin + "<|user|>one<|assistant|><think></think>two"
    assert places(service, request) == [begin, turns, turns + "<|user|>three"]
    assert request.shared_at == request.keep_at[:1]
    assert list(request.tokens) == service.model.text.tokenizer.encode(
        service.model.text.chat_template().render(talk)
    )
    assert places(service, asked(service, talk[1:2])) == ["[gMASK]<sop><|user|>one"]
    with_tools = asked(service, talk[:2], tools=[TOOL])
    assert places(service, with_tools)[0].endswith("</tool_call><|system|>Be kind.")


def test_content_may_come_in_parts(service):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    whole = asked(service, [{"role": "user", "content": "ab"}])
    assert asked(service, [{"role": "user", "content": parts}]).tokens == whole.tokens
    with pytest.raises(InvalidRequestError) as caught:
        asked(service, [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}])
    assert caught.value.field == "messages[0].content[0].type"


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ({"role": "assistant"}, "messages[0].content"),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "t", "arguments": "[1]"}}]}, None),
        ({"role": "assistant", "tool_calls": [{"function": {"name": "t", "arguments": "{"}}]}, None),
        ({"role": "assistant", "content": "x", "refusal": "no"}, "messages[0].refusal"),
        ({"role": "user", "content": "x", "name": "ann"}, "messages[0].name"),
        ({"role": "user"}, "messages[0].content"),
    ],
)
def test_messages_that_cannot_be_meant(service, message, named):
    with pytest.raises(InvalidRequestError) as caught:
        asked(service, [message])
    assert caught.value.field == (named or "messages[0].tool_calls[0].function.arguments")


def test_replies_end_at_the_mark_of_a_turn(service):
    assert service.model.end_ids == service.model.text.stop_tokens | {
        service.model.text.tokenizer.token("<|assistant|>")
    }


def test_prompts_of_completions(service):
    one = completion(service, prompt="ab cd")
    assert one.choices[0].request.max_tokens == 16
    assert one.choices[0].request.thinking is None
    many = completion(service, prompt=[[1, 2], [3]], n=2, max_tokens=1)
    assert [choice.request.tokens for choice in many.choices] == [(1, 2), (1, 2), (3,), (3,)]
    assert len({choice.request.id for choice in many.choices}) == 4
    assert many.prompt_tokens == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": ""},
        {"prompt": [[]]},
        {"prompt": ["a", 1]},
        {"prompt": [1, [1]]},
        {"prompt": [4096]},
        {"prompt": ["a"] * 65},
        {"prompt": ["a"] * 33, "n": 2},
        {"prompt": "a", "echo": True, "logprobs": 1, "stream": True},
        {"prompt": "a", "echo": True, "logprobs": 1, "prompt_logprobs": 1},
        {"prompt": "a", "best_of": 2},
        {"prompt": "a", "suffix": "b"},
    ],
)
def test_completions_that_cannot_be_meant(service, fields):
    with pytest.raises(InvalidRequestError) as caught:
        completion(service, **fields)
    assert caught.value.field
