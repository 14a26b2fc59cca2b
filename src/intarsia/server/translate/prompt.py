"""Messages to the tokens of a prompt, with the places worth keeping a state at."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from intarsia.core.errors import UsageError
from intarsia.core.json import JsonError, parse_object
from intarsia.engine.text.assets import TextAssets
from intarsia.engine.text.errors import MessageRefusedError, TemplateError
from intarsia.engine.text.reasoning import begins_thinking
from intarsia.engine.text.template import ChatTemplate
from intarsia.server.errors import FailedError, InvalidRequestError
from intarsia.server.wire.messages import AssistantMessage, Message, ToolMessage, text_of
from intarsia.server.wire.tools import Tool

# Where a rendered prompt may be cut without changing how it is tokenized: before a control token.
_TURN = re.compile(r"<\|[a-z_]{1,32}\|>")
_SHARED_ROLES = ("system", "developer")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the engine takes it."""

    tokens: tuple[int, ...]
    inside_thinking: bool = False
    """True when the reply begins inside a thinking block."""
    keep_at: tuple[int, ...] = ()
    """The ends of the system block and of the rendered history, and the start of the last user turn."""
    shared_at: tuple[int, ...] = ()
    """The first of them, which other conversations share."""


def render(
    text: TextAssets, messages: Sequence[Message], tools: Sequence[Tool], options: Mapping[str, object]
) -> Prompt:
    """The prompt of a conversation through the checkpoint's template.

    Raises InvalidRequestError for messages the template refuses.
    """
    if text.template is None:
        raise InvalidRequestError(
            "The model has no chat template; use /v1/completions.", code="no_chat_template"
        )
    _check_known(text.template, options, tools)
    plain = [_plain(message, f"messages[{number}]") for number, message in enumerate(messages)]
    offered = [_plain_tool(tool) for tool in tools]

    def rendered(count: int, *, ask: bool) -> str:
        return text.chat_template().render(plain[:count], tools=offered, add_generation_prompt=ask, **options)

    whole = _refusing(lambda: rendered(len(plain), ask=True))
    system = next((i for i, message in enumerate(plain) if message["role"] not in _SHARED_ROLES), len(plain))
    users = [i for i, message in enumerate(plain) if message["role"] == "user"]
    counts = [(system, True)] if system or offered else []
    counts += [(users[-1], False)] if users and users[-1] > system else []
    counts.append((len(plain), False))
    cuts: dict[int, bool] = {}
    for count, shared in counts:
        place = _cut(whole, _part(lambda count=count: rendered(count, ask=False)))
        if place:
            cuts[place] = cuts.get(place, False) or shared
    tokens, ends = _encode(text, whole, sorted(cuts))
    return Prompt(
        tokens=tuple(tokens),
        inside_thinking=begins_thinking(whole),
        keep_at=tuple(ends),
        shared_at=tuple(end for end, place in zip(ends, sorted(cuts), strict=True) if cuts[place]),
    )


def _check_known(template: ChatTemplate, options: Mapping[str, object], tools: Sequence[Tool]) -> None:
    """Refuse what the template would silently leave out."""
    if tools and not template.mentions("tools"):
        raise InvalidRequestError("The model's chat template knows no tools.", field="tools")
    for name in options:
        if not template.mentions(name):
            raise InvalidRequestError(f"The model's chat template knows no '{name}'.", field=name)


def _refusing(render_whole: Any) -> str:
    """The template's refusals are the client's, its failures are ours."""
    try:
        return str(render_whole())
    except MessageRefusedError as error:
        problem = InvalidRequestError(f"The chat template refuses: {error.found[:300]}", field="messages")
    except UsageError as error:
        problem = InvalidRequestError(str(error)[:400], field=error.where)
    except TemplateError as error:
        if "characters" in error.found:
            problem = InvalidRequestError(f"The prompt is too long: {error.found}.", field="messages")
        else:
            raise FailedError(
                f"The chat template failed: {error.found[:300]}", code="template_failed"
            ) from None
    raise problem


def _part(render_part: Any) -> str:
    """A beginning of the conversation, empty when the template refuses it by itself."""
    try:
        return str(render_part())
    except (TemplateError, UsageError):
        return ""


def _cut(whole: str, part: str) -> int:
    """Where `whole` goes on after `part`, if it does so with a new turn; else 0."""
    low, high = 0, min(len(whole), len(part))
    while low < high:  # halving: slices are compared at memory speed
        middle = (low + high + 1) // 2
        low, high = (middle, high) if whole.startswith(part[:middle]) else (low, middle - 1)
    return low if _TURN.match(whole, low) else 0


def _encode(text: TextAssets, whole: str, cuts: Sequence[int]) -> tuple[list[int], list[int]]:
    """All tokens, and how many there are before each cut."""
    tokens: list[int] = []
    ends: list[int] = []
    begin = 0
    for cut in cuts:
        tokens += text.tokenizer.encode(whole[begin:cut])
        ends.append(len(tokens))
        begin = cut
    return tokens + text.tokenizer.encode(whole[begin:]), ends


def _plain(message: Message, field: str) -> dict[str, Any]:
    """A message as templates expect it."""
    role = message.__struct_config__.tag
    result: dict[str, Any] = {
        "role": "system" if role == "developer" else role,
        "content": text_of(message.content),
    }
    if isinstance(message, AssistantMessage):
        if message.content is None and not message.tool_calls and message.reasoning_content is None:
            raise InvalidRequestError("The message says nothing.", field=f"{field}.content")
        result["content"] = result["content"] or ""
        if message.reasoning_content is not None:
            result["reasoning_content"] = message.reasoning_content
        if message.tool_calls:
            result["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": _arguments(
                            call.function.arguments, f"{field}.tool_calls[{number}].function.arguments"
                        ),
                    },
                }
                for number, call in enumerate(message.tool_calls)
            ]
    if isinstance(message, ToolMessage):
        told = {"tool_call_id": message.tool_call_id or None, "name": message.name}
        result |= {name: value for name, value in told.items() if value is not None}
    return result


def _arguments(text: str, field: str) -> dict[str, Any]:
    try:
        return parse_object(text.encode() or b"{}", field)
    except JsonError as error:
        problem = error.found
    raise InvalidRequestError(f"The arguments are no JSON object: {problem}.", field=field)


def _plain_tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.function.name}
    if tool.function.description is not None:
        function["description"] = tool.function.description
    function["parameters"] = tool.function.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}
