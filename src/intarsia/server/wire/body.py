"""Bytes of a body to a checked structure, or an error that names the field."""

import re
from typing import Any, TypeVar

import msgspec

from intarsia.core.json import JsonError, parse_object
from intarsia.server.errors import InvalidRequestError

MAX_DEPTH = 64
MAX_VALUES = 2_000_000
_PLACE = re.compile(r"(?s)^(.*) - at `(\$[^`]*)`$")
_UNKNOWN = re.compile(r"^Object contains unknown field `(.{0,200})`")
_MISSING = re.compile(r"^Object missing required field `([^`]{1,200})`$")

T = TypeVar("T")


def read(body: bytes, kind: type[T]) -> T:
    """One JSON object in UTF-8, as `kind`.

    Raises InvalidRequestError for text that is not strict JSON (duplicate keys and lone surrogates count),
    and for fields that are unknown, missing, of another type or out of bounds, with the field's path.
    """
    try:
        value = parse_object(body, "body", max_depth=MAX_DEPTH, max_values=MAX_VALUES, max_bytes=len(body))
    except JsonError as error:
        problem = f"The body is not a strict JSON object: found {error.found}."
    else:
        return convert(value, kind)
    raise InvalidRequestError(problem, code="invalid_json")


def convert(value: dict[str, Any], kind: type[T]) -> T:
    """A parsed object as `kind`; InvalidRequestError names the field that does not fit."""
    try:
        return msgspec.convert(value, kind, strict=True)
    except msgspec.ValidationError as error:
        message, field = _place(str(error))
    raise InvalidRequestError(message, field=field, code="unknown_field" if "unknown" in message else None)


def _place(text: str) -> tuple[str, str]:
    """The message for the client, and the path of the field without the leading `$`."""
    match = _PLACE.match(text)
    problem, path = (match[1], match[2]) if match else (text, "$")
    path = path.removeprefix("$").removeprefix(".")
    for pattern, verb in ((_UNKNOWN, "is unknown or not supported"), (_MISSING, "is missing")):
        if named := pattern.match(problem):
            field = f"{path}.{named[1]}" if path else named[1]
            return f"The field '{field}' {verb}.", field
    where = f"The field '{path}'" if path else "The body"
    return f"{where} cannot be used: {problem[:300]}.", path
