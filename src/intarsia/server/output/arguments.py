"""Arguments of tool calls: raw text to a value of the type its schema asks for.

GLM writes strings bare and everything else as JSON, so the text alone does not say which of the two it is.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from intarsia.core.errors import IntarsiaError
from intarsia.core.json import JsonError, parse

_MAX_DEPTH = 64
_MAX_REFERENCES = 16
_PYTHON = {"True": True, "False": False, "None": None}
_ALL = frozenset(("string", "integer", "number", "boolean", "null", "array", "object"))


class ArgumentError(IntarsiaError):
    """A value that is none of the types its schema allows."""


def typed(name: str, raw: str, schema: object, root: Mapping[str, Any]) -> Any:
    """The value of argument `name` under its `schema`; `root` is where `$ref` points.

    A bare string is taken as it is. Where other types are allowed too, text that is JSON of one of them is
    that value. Raises ArgumentError when nothing fits.
    """
    types = allowed_types(schema, root)
    if types == {"string"}:
        return raw
    text = raw.strip()
    try:
        value: Any = _PYTHON[text] if text in _PYTHON else parse(text.encode(), name, max_depth=_MAX_DEPTH)
    except JsonError:
        value = raw
    kind = _type_of(value)
    if kind in types or (kind == "integer" and "number" in types):
        # a quoted string is only unquoted where the schema says nothing about strings
        return raw if kind == "string" and types != _ALL and isinstance(value, str) else value
    if kind == "number" and "integer" in types and float(value).is_integer():
        return int(value)
    if "string" in types:
        return raw
    raise ArgumentError(name, found=raw[:100], expected=" or ".join(sorted(types)))


def allowed_types(schema: object, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """The JSON types a schema lets through, as its types, options, references and combinations tell."""
    if not isinstance(schema, Mapping) or depth > _MAX_REFERENCES:
        return _ALL
    types = _ALL
    if (declared := schema.get("type")) is not None:
        types &= frozenset([declared] if isinstance(declared, str) else _strings(declared))
    if isinstance(options := schema.get("enum"), list):
        types &= frozenset(map(_type_of, options))
    if "const" in schema:
        types &= {_type_of(schema["const"])}
    if isinstance(reference := schema.get("$ref"), str):
        types &= allowed_types(resolve(reference, root), root, depth + 1)
    for word in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(word), list) and options:
            types &= frozenset().union(*(allowed_types(option, root, depth + 1) for option in options))
    if isinstance(options := schema.get("allOf"), list):
        for option in options:
            types &= allowed_types(option, root, depth + 1)
    return types or _ALL


def as_json(arguments: Mapping[str, Any]) -> str:
    """The arguments of a call as the text that clients parse."""
    return json.dumps(arguments, ensure_ascii=False)


def _strings(value: object) -> Sequence[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else sorted(_ALL)


def _type_of(value: object) -> str:
    if value is None:
        return "null"
    # bool before int: True is an int in Python
    names = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"))
    return next((name for kind, name in names if isinstance(value, kind)), "object")


def resolve(reference: str, root: Mapping[str, Any]) -> object:
    """What a local reference such as `#/$defs/place` points to; None if it points nowhere."""
    if not reference.startswith("#/"):
        return None
    here: object = root
    for step in reference[2:].split("/"):
        if not isinstance(here, Mapping):
            return None
        here = here.get(step.replace("~1", "/").replace("~0", "~"))
    return here
