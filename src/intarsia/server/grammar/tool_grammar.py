"""The grammar of GLM's tool calls, for calls that must be made and for tools whose schema is strict."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from intarsia.server.errors import InvalidRequestError
from intarsia.server.grammar.compiler import GrammarCompiler
from intarsia.server.grammar.sources import BLANKS, LARGEST_SCHEMA, OPTIONS_KEY, Source, quoted, schema_text
from intarsia.server.output.arguments import allowed_types, resolve
from intarsia.server.output.markers import CALL, CALL_END, KEY, KEY_END, VALUE, VALUE_END

_LONGEST_KEY = 256
_MAX_REFERENCES = 16
_UNENFORCED = ("format", "anyOf", "oneOf", "allOf", "not", "if")


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """What a grammar needs of a tool."""

    name: str
    schema: Mapping[str, Any]
    strict: bool
    """Arguments are exactly those of the schema: required ones present, in the schema's order."""


@dataclass(frozen=True, slots=True)
class CallRules:
    """Which calls a reply may and must have."""

    must_call: bool
    several: bool
    answer: Source | None = None
    """The format of a reply that calls no tool."""


def tool_source(
    tools: Sequence[OfferedTool], rules: CallRules, compiler: GrammarCompiler, field: str
) -> Source:
    """A grammar of calls to `tools`, after text or another format unless a call must be made."""
    marks = {mark: compiler.marker(mark) for mark in (CALL, CALL_END, KEY, KEY_END, VALUE, VALUE_END)}
    calls = "call (WS call)* WS" if rules.several else "call WS"
    lines = [f"start: {_start(calls, rules)}", "call: " + " | ".join(f"call_{i}" for i in range(len(tools)))]
    for number, tool in enumerate(tools):
        lines += _tool_rules(number, tool, marks, field, ordered=tool.strict or rules.must_call)
    lines += ["TEXT: /(.|\\n)*/", "WS: /[ \\n]{0,4}/"]
    if rules.answer is not None:
        lines.append(f"answer: {_inline(rules.answer)}")
    text = "\n".join(lines)
    if len(text) > 2 * LARGEST_SCHEMA:
        raise InvalidRequestError(f"The tools make a grammar of {len(text):,} characters.", field=field)
    return Source("lark", text, field)


def _start(calls: str, rules: CallRules) -> str:
    if rules.must_call:
        return f"WS {calls}"
    return f"WS {calls} | answer" if rules.answer is not None else f"TEXT | TEXT {calls}"


def _inline(answer: Source) -> str:
    if answer.notation == "json":
        return _json({}, answer.text)
    if answer.notation == "regex":
        raise InvalidRequestError("A pattern cannot be combined with tools.", field=answer.field)
    raise InvalidRequestError("A grammar cannot be combined with tools.", field=answer.field)


def _tool_rules(
    number: int, tool: OfferedTool, marks: Mapping[str, str], field: str, *, ordered: bool
) -> list[str]:
    """`ordered`: known arguments come in the schema's order, each once, so that a call is what is written."""
    properties = tool.schema.get("properties")
    known = properties if isinstance(properties, Mapping) else {}
    required = tool.schema.get("required")
    needed = set(required) if isinstance(required, list) else set()
    names = [f"arg_{number}_{index}" for index in range(len(known))]
    if tool.strict or (ordered and names):
        arguments = " ".join(
            f"WS {name}" if key in needed else f"(WS {name})?" for key, name in zip(known, names, strict=True)
        )
    elif names or "properties" in tool.schema:
        arguments = f"(WS ({' | '.join(names)}))*" if names else ""
    else:
        names, arguments = [], f"(WS arg_{number})*"
    lines = [f"call_{number}: {marks[CALL]} {quoted(tool.name)} {arguments} WS {marks[CALL_END]}"]
    if not names and arguments:
        lines.append(
            f"arg_{number}: {marks[KEY]} /[^<\\n]{{1,64}}/ {marks[KEY_END]}"
            f" WS {marks[VALUE]} TEXT {marks[VALUE_END]}"
        )
    for (key, schema), name in zip(known.items(), names, strict=bool(names)):
        _check_key(key, field)
        value = _value(schema, tool, field)
        if value.startswith("/"):
            # Only terminals can be met with each other.
            lines.append(f"{name.upper()}_TEXT: {value}")
            value = f"{name.upper()}_TEXT"
        lines.append(
            f"{name}: {marks[KEY]} {quoted(key)} {marks[KEY_END]}"
            f" WS {marks[VALUE]} {value} {marks[VALUE_END]}"
        )
    return lines


def _check_key(key: str, field: str) -> None:
    if not 0 < len(key) <= _LONGEST_KEY or "<" in key or key != key.strip():
        raise InvalidRequestError(f"The argument name {key[:80]!r} cannot be written in a call.", field=field)


def _value(schema: object, tool: OfferedTool, field: str) -> str:
    """Strings are written bare, the rest as JSON."""
    root = tool.schema
    if not isinstance(schema, Mapping):
        return "TEXT"
    options = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(options, list) and options and all(isinstance(option, str) for option in options):
        return "(" + " | ".join(map(quoted, options)) + ")"
    if "string" in allowed_types(schema, root):
        return _bare(schema, root, field) if tool.strict else "TEXT"
    shared = {word: root[word] for word in ("$defs", "definitions") if word in root}
    return _json(shared, schema_text(schema, field))


def _bare(schema: Mapping[str, Any], root: Mapping[str, Any], field: str) -> str:
    """A string of a strict tool, which has to be what the schema says or is refused."""
    for _ in range(_MAX_REFERENCES):
        reference = schema.get("$ref")
        target = resolve(reference, root) if isinstance(reference, str) else None
        if not isinstance(target, Mapping):
            break
        schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
    least, most = schema.get("minLength", 0), schema.get("maxLength")
    if type(least) is not int or not (most is None or type(most) is int):
        raise InvalidRequestError("The length of a string is no whole number.", field=field)
    parts = []
    if least or most is not None:
        parts = [f"/(.|\\n){{{least},{'' if most is None else most}}}/"]
    if isinstance(pattern := schema.get("pattern"), str):
        parts.append(f"/{_searched(pattern)}/")
    told = {word for word in _UNENFORCED if _asks(schema.get(word))}
    if told:
        names = ", ".join(f"'{word}'" for word in sorted(told))
        raise InvalidRequestError(f"A strict tool's string cannot be held to {names}.", field=field)
    return " & ".join(parts) or "TEXT"


def _asks(value: object) -> bool:
    """True for a word of a schema that asks something of a string; alternatives may ask for nothing."""
    if not isinstance(value, list):
        return value is not None
    words = {"pattern", "minLength", "maxLength", "enum", "const", "$ref", *_UNENFORCED}
    return any(isinstance(option, Mapping) and words & option.keys() for option in value)


def _searched(pattern: str) -> str:
    """A pattern that may stand anywhere in a string, as one for the whole of it."""
    begin = "" if pattern.startswith("^") else "(.|\\n)*"
    end = "" if pattern.endswith("$") and not pattern.endswith("\\$") else "(.|\\n)*"
    inside = pattern[not begin : len(pattern) - (not end)]
    return f"{begin}({inside}){end}".replace("/", "\\/")


def _json(shared: Mapping[str, Any], schema: str) -> str:
    options = {OPTIONS_KEY: {"whitespace_pattern": BLANKS}}
    return f"%json {json.dumps({**shared, **json.loads(schema), **options}, ensure_ascii=False)}"
