"""Which format a reply must have, from the several ways clients have of asking for one."""

from intarsia.core.json import JsonError, parse_object
from intarsia.server.errors import InvalidRequestError
from intarsia.server.grammar.sources import (
    LARGEST_SCHEMA,
    Source,
    any_object,
    choice_source,
    lark_source,
    regex_source,
    schema_source,
)
from intarsia.server.wire.asked import Sampled
from intarsia.server.wire.base import Json
from intarsia.server.wire.tools import JsonObjectFormat, JsonSchemaFormat, ResponseFormat, StructuredOutputs


def format_of(asked: Sampled, response_format: ResponseFormat | None) -> Source | None:
    """The one format asked for; InvalidRequestError when there are two."""
    found = [source for source in _formats(asked, response_format) if source is not None]
    if len(found) > 1:
        fields = " and ".join(f"'{source.field}'" for source in found)
        raise InvalidRequestError(f"Only one format can be asked for, not {fields}.", field=found[1].field)
    if found and asked.ignore_eos:
        raise InvalidRequestError("A format ends the reply; 'ignore_eos' cannot hold.", field="ignore_eos")
    return found[0] if found else None


def _formats(asked: Sampled, response_format: ResponseFormat | None) -> list[Source | None]:
    guided = StructuredOutputs(
        json=asked.guided_json,
        regex=asked.guided_regex,
        choice=asked.guided_choice,
        grammar=asked.guided_grammar,
    )
    found = [_response_format(response_format), *_structured(guided, "guided_")]
    if asked.structured_outputs is not None:
        structured = _structured(asked.structured_outputs, "structured_outputs.")
        if all(source is None for source in structured):
            raise InvalidRequestError("No format is given.", field="structured_outputs")
        found += structured
    return found


def _response_format(asked: ResponseFormat | None) -> Source | None:
    if isinstance(asked, JsonObjectFormat):
        return any_object("response_format")
    if isinstance(asked, JsonSchemaFormat):
        field = "response_format.json_schema.schema"
        if asked.json_schema.schema is None:
            raise InvalidRequestError(f"The field '{field}' is missing.", field=field)
        return schema_source(asked.json_schema.schema, field)
    return None


def _structured(asked: StructuredOutputs, prefix: str) -> list[Source | None]:
    return [
        None if asked.json is None else schema_source(_schema(asked.json, f"{prefix}json"), f"{prefix}json"),
        None if asked.regex is None else regex_source(asked.regex, f"{prefix}regex"),
        None if asked.choice is None else choice_source(asked.choice, f"{prefix}choice"),
        None if asked.grammar is None else lark_source(asked.grammar, f"{prefix}grammar"),
        any_object(f"{prefix}json_object") if asked.json_object else None,
    ]


def _schema(asked: Json | str, field: str) -> Json:
    """A schema, which may come as the text of one."""
    if not isinstance(asked, str):
        return asked
    try:
        return parse_object(asked.encode(), field, max_bytes=4 * LARGEST_SCHEMA)
    except JsonError as error:
        problem = error.found
    raise InvalidRequestError(f"The text is no JSON object: {problem}.", field=field)
