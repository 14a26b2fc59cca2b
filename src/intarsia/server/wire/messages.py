"""The messages of a conversation, one structure a role.

Fields that clients copy from an earlier reply (`refusal`, `annotations`, `audio`, `function_call`) are
accepted while they are empty: they ask for nothing. With a content they are refused.
"""

from typing import Annotated, Literal

from msgspec import Meta

from intarsia.server.wire.base import MOST_CALLS, MOST_PARTS, Asked, CallId, FunctionName


class TextPart(Asked, tag_field="type", tag="text"):
    """A piece of text of a message."""

    text: str


Content = str | Annotated[list[TextPart], Meta(max_length=MOST_PARTS)]


class SystemMessage(Asked, tag_field="role", tag="system"):
    """Instructions for the whole conversation."""

    content: Content


class DeveloperMessage(Asked, tag_field="role", tag="developer"):
    """The same under OpenAI's newer name."""

    content: Content


class UserMessage(Asked, tag_field="role", tag="user"):
    """What the user says."""

    content: Content


class CalledFunction(Asked):
    """The function of an earlier call."""

    name: FunctionName
    arguments: str
    """A JSON object."""


class Call(Asked):
    """A tool call of an earlier reply."""

    function: CalledFunction
    id: CallId = ""
    type: Literal["function"] = "function"
    index: Annotated[int, Meta(ge=0, le=MOST_CALLS)] | None = None


class AssistantMessage(Asked, tag_field="role", tag="assistant"):
    """An earlier reply: its content, its reasoning, the tools it called."""

    content: Content | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[Call], Meta(max_length=MOST_CALLS)] | None = None
    refusal: None = None
    annotations: Annotated[list[str], Meta(max_length=0)] | None = None
    audio: None = None
    function_call: None = None


class ToolMessage(Asked, tag_field="role", tag="tool"):
    """What a tool answered."""

    content: Content
    tool_call_id: CallId = ""
    name: FunctionName | None = None
    """The tool's name, which some clients repeat here."""


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


def text_of(content: Content | None) -> str | None:
    """The text of a message; parts are joined without anything between them."""
    if content is None or isinstance(content, str):
        return content
    return "".join(part.text for part in content)
