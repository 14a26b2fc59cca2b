"""A chat request as a plan."""

import re
from collections.abc import Sequence

from intarsia.engine.requests import Request, choices
from intarsia.server.errors import InvalidRequestError
from intarsia.server.grammar.sources import LARGEST_SCHEMA, Source, schema_text
from intarsia.server.grammar.tool_grammar import CallRules, OfferedTool, tool_source
from intarsia.server.service import Service
from intarsia.server.translate.formats import format_of
from intarsia.server.translate.plan import Choice, Plan, Telling
from intarsia.server.translate.prompt import render
from intarsia.server.translate.sampling import check_stream, common_fields, sampling_of
from intarsia.server.translate.thinking import template_options, thinking_of
from intarsia.server.wire.asked import ChatRequest
from intarsia.server.wire.tools import NamedTool, Tool

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}\Z")


def plan_chat(service: Service, asked: ChatRequest, id: str) -> Plan:
    """What the engine is asked for a conversation.

    Raises ApiError, and UsageError for values that the engine's own settings refuse.
    """
    service.check_model(asked.model)
    check_stream(asked)
    model = service.model
    tools = _tools(asked)
    offered = [] if asked.tool_choice == "none" else tools
    source = _source(service, asked, offered)
    prompt = render(
        model.text,
        asked.messages,
        [] if asked.tool_choice == "none" else asked.tools or [],
        template_options(asked),
    )
    count = asked.n or 1
    request = Request(
        id=id,
        tokens=prompt.tokens,
        sampling=sampling_of(asked, model.text.defaults),
        max_tokens=_max_tokens(asked),
        logprobs=_logprobs(asked),
        thinking=thinking_of(
            model, inside=prompt.inside_thinking, budget=asked.thinking_budget, formatted=source is not None
        ),
        keep_at=prompt.keep_at,
        shared_at=prompt.shared_at,
        **common_fields(asked, model.vocab_size),
    )
    grammars = service.grammars.compile(source, count) if source is not None else ()
    return Plan(
        id=id,
        route="chat",
        choices=tuple(Choice(one, prompt.tokens) for one in choices(request, count, grammars)),
        telling=Telling(
            stream=bool(asked.stream),
            include_usage=bool(asked.stream_options and asked.stream_options.include_usage),
            logprobs=bool(asked.logprobs),
            top_logprobs=asked.top_logprobs or 0,
            token_ids=bool(asked.return_token_ids),
            inside_thinking=prompt.inside_thinking,
            thinks=model.think is not None,
            tools={tool.name: tool.schema for tool in offered} if offered else None,
            several_calls=asked.parallel_tool_calls is not False,
        ),
        model=model.name,
        user=asked.user,
    )


def _max_tokens(asked: ChatRequest) -> int | None:
    newer, older = asked.max_completion_tokens, asked.max_tokens
    if newer is not None and older is not None and newer != older:
        raise InvalidRequestError(
            "'max_tokens' and 'max_completion_tokens' differ.", field="max_completion_tokens"
        )
    return older if newer is None else newer


def _logprobs(asked: ChatRequest) -> int | None:
    if asked.top_logprobs is not None and not asked.logprobs:
        raise InvalidRequestError("'top_logprobs' needs 'logprobs'.", field="top_logprobs")
    return (asked.top_logprobs or 0) if asked.logprobs else None


def _tools(asked: ChatRequest) -> list[OfferedTool]:
    """The offered tools, checked; one schema text bounds them all together."""
    result: list[OfferedTool] = []
    size = 0
    for number, tool in enumerate(asked.tools or []):
        field = f"tools[{number}].function"
        name = tool.function.name
        if not _NAME.match(name):
            raise InvalidRequestError("Expected letters, digits, '_', '.' and '-'.", field=f"{field}.name")
        if any(other.name == name for other in result):
            raise InvalidRequestError(f"The tool '{name}' is offered twice.", field=f"{field}.name")
        schema = _schema(tool, field)
        size += len(schema_text(schema, f"{field}.parameters"))
        if size > LARGEST_SCHEMA:
            raise InvalidRequestError(
                f"The schemas of the tools have more than {LARGEST_SCHEMA:,} characters.", field="tools"
            )
        result.append(OfferedTool(name, schema, bool(tool.function.strict)))
    return result


def _schema(tool: Tool, field: str) -> dict[str, object]:
    schema = tool.function.parameters or {"type": "object", "properties": {}}
    if schema.get("type", "object") != "object" or not isinstance(schema.get("properties", {}), dict):
        raise InvalidRequestError("Expected the schema of an object.", field=f"{field}.parameters")
    return schema


def _source(service: Service, asked: ChatRequest, tools: Sequence[OfferedTool]) -> Source | None:
    """The grammar of the reply, None where anything may be said."""
    answer = format_of(asked, asked.response_format)
    choice = asked.tool_choice
    if not tools:
        if choice not in (None, "none", "auto"):
            raise InvalidRequestError("A tool must be called, but none is offered.", field="tool_choice")
        return answer
    must_call = choice == "required" or isinstance(choice, NamedTool)
    if isinstance(choice, NamedTool):
        name = choice.function.name
        tools = [tool for tool in tools if tool.name == name]
        if not tools:
            raise InvalidRequestError(f"The tool '{name}' is not offered.", field="tool_choice.function.name")
    if must_call and asked.ignore_eos:
        raise InvalidRequestError(
            "A forced call ends the reply; 'ignore_eos' cannot hold.", field="ignore_eos"
        )
    if not must_call and answer is None and not any(tool.strict for tool in tools):
        return None
    several = asked.parallel_tool_calls is not False and not isinstance(choice, NamedTool)
    rules = CallRules(must_call=must_call, several=several, answer=None if must_call else answer)
    return tool_source(tools, rules, service.grammars, "tools")
