"""Tools offered to the model, and formats a reply must have."""

from typing import Annotated, Literal

from msgspec import Meta

from intarsia.server.wire.base import Asked, FunctionName, Json

LONGEST_PATTERN = 16_384
LONGEST_GRAMMAR = 65_536
MOST_OPTIONS = 4096


class Function(Asked):
    """A function the model may call; `parameters` is a JSON schema."""

    name: FunctionName
    description: str | None = None
    parameters: Json | None = None
    strict: bool | None = None


class Tool(Asked):
    """An offered tool."""

    function: Function
    type: Literal["function"] = "function"


class NamedFunction(Asked):
    """The name inside a tool choice."""

    name: FunctionName


class NamedTool(Asked):
    """A tool choice that names the function to call."""

    function: NamedFunction
    type: Literal["function"] = "function"


ToolChoice = Literal["none", "auto", "required"] | NamedTool


class TextFormat(Asked, tag_field="type", tag="text"):
    """No format."""


class JsonObjectFormat(Asked, tag_field="type", tag="json_object"):
    """Any JSON object."""


class NamedSchema(Asked):
    """A JSON schema with the name OpenAI asks for."""

    name: FunctionName
    schema: Json | None = None
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(Asked, tag_field="type", tag="json_schema"):
    """A JSON value that fits a schema; always enforced, `strict` or not."""

    json_schema: NamedSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat

Pattern = Annotated[str, Meta(min_length=1, max_length=LONGEST_PATTERN)]
GrammarText = Annotated[str, Meta(min_length=1, max_length=LONGEST_GRAMMAR)]
Options = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=LONGEST_PATTERN)]],
    Meta(min_length=1, max_length=MOST_OPTIONS),
]


class StructuredOutputs(Asked):
    """vLLM's way of asking for a format; exactly one of them."""

    json: Json | str | None = None
    regex: Pattern | None = None
    choice: Options | None = None
    grammar: GrammarText | None = None
    json_object: bool | None = None
