"""Grammars of tool calls: texts that are calls, and texts that are none."""

import pytest

from intarsia.server.errors import InvalidRequestError
from intarsia.server.grammar.sources import (
    choice_source,
    regex_source,
    schema_source,
)
from intarsia.server.grammar.tool_grammar import CallRules, OfferedTool, tool_source
from tests.server.grammars import ENDS, PERSON, follows, mask

TOOLS = [
    OfferedTool(
        "weather",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "unit": {"enum": ["C", "F"]},
                "place": {"$ref": "#/$defs/place"},
            },
            "required": ["city"],
            "$defs": {"place": {"type": "object", "properties": {"x": {"type": "integer"}}}},
        },
        strict=False,
    ),
    OfferedTool("now", {"type": "object", "properties": {}}, strict=False),
    OfferedTool("free", {"type": "object"}, strict=False),
]
STRICT = [OfferedTool("weather", TOOLS[0].schema, strict=True)]
MUST, MAY, ONE = CallRules(True, True), CallRules(False, True), CallRules(True, False)


def call(name, *arguments):
    body = "".join(f"\n<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>" for k, v in arguments)
    return f"<tool_call>{name}{body}\n</tool_call>"


@pytest.mark.parametrize(
    ("tools", "rules", "text", "fits"),
    [
        (TOOLS, MUST, call("weather", ("city", "Rom <b>")), True),
        (TOOLS, MUST, call("weather", ("city", "Rom"), ("days", "3")), True),
        (TOOLS, MUST, call("weather", ("days", "3"), ("city", "Rom")), False),
        (TOOLS, MUST, call("weather", ("city", "Rom"), ("city", "Bonn")), False),
        (TOOLS, MUST, call("weather", ("days", "3")), False),
        (TOOLS, MUST, call("weather", ("city", "Rom"), ("days", "three")), False),
        (TOOLS, MUST, call("weather", ("city", "Rom"), ("unit", "K")), False),
        (TOOLS, MUST, call("weather", ("city", "Rom"), ("place", '{"x": 1}')), True),
        (TOOLS, MUST, call("weather", ("city", "Rom"), ("place", '{"x": "1"}')), False),
        (TOOLS, MUST, call("weather", ("town", "Rom")), False),
        (TOOLS, MUST, call("now") + "\n" + call("free", ("any", "thing")), True),
        (TOOLS, MUST, call("rm"), False),
        (TOOLS, MUST, "No.", False),
        (TOOLS, ONE, call("now") + call("now"), False),
        (STRICT, MAY, "Just text.", True),
        (STRICT, MAY, "Let me see. " + call("weather", ("city", "Rom"), ("days", "3")), True),
        (STRICT, MAY, call("weather", ("days", "3")), False),
        (STRICT, MAY, call("weather", ("days", "3"), ("city", "Rom")), False),
        (STRICT, CallRules(False, True, schema_source(PERSON, "f")), '{"name": "A", "age": 1}', True),
        (STRICT, CallRules(False, True, schema_source(PERSON, "f")), call("weather", ("city", "A")), True),
        (STRICT, CallRules(False, True, schema_source(PERSON, "f")), "text", False),
    ],
)
def test_tool_calls(compiler, tools, rules, text, fits):
    assert follows(compiler, tool_source(tools, rules, compiler, "tools"), text) is fits


@pytest.mark.parametrize(
    ("schema", "text", "fits"),
    [
        ({"type": "string", "pattern": "^(a+)+$"}, "aaa", True),
        ({"type": "string", "pattern": "^(a+)+$"}, "there", False),
        ({"type": "string", "pattern": "b/c"}, "ab/cd\ne", True),
        ({"type": "string", "pattern": "b/c"}, "bc", False),
        ({"type": "string", "minLength": 2, "maxLength": 3}, "é漢", True),
        ({"type": "string", "minLength": 2, "maxLength": 3}, "abcd", False),
        ({"type": "string", "minLength": 2, "pattern": "x"}, "x", False),
        ({"type": "string", "minLength": 2, "pattern": "x"}, "xy", True),
        ({"type": "string", "const": "yes"}, "yes", True),
        ({"type": "string", "const": "yes"}, "no", False),
        ({"$ref": "#/$defs/code"}, "AB", True),
        ({"$ref": "#/$defs/code"}, "ab", False),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "anything", True),
    ],
)
def test_strings_of_a_strict_tool_are_what_its_schema_says(compiler, schema, text, fits):
    root = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    root["$defs"] = {"code": {"type": "string", "pattern": "^[A-Z]{2}$"}}
    source = tool_source([OfferedTool("t", root, strict=True)], MUST, compiler, "tools")
    assert follows(compiler, source, call("t", ("a", text))) is fits


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "format": "date"},
        {"type": "string", "allOf": [{"pattern": "a"}]},
        {"anyOf": [{"type": "string", "minLength": 3}, {"type": "null"}]},
        {"type": "string", "minLength": "3"},
        {"type": "string", "pattern": "(?=x)y"},
    ],
)
def test_what_a_strict_string_cannot_be_held_to_is_refused(compiler, schema):
    root = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    with pytest.raises(InvalidRequestError):
        compiler.compile(tool_source([OfferedTool("t", root, strict=True)], MUST, compiler, "tools"))


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            schema_source(
                {
                    "type": "object",
                    "properties": {"</arg_key>": {"type": "null"}},
                    "required": ["</arg_key>"],
                },
                "f",
            ),
            '{"</arg_key>": null}',
        ),
        (choice_source(["<think>", "<|user|>x"], "f"), "<|user|>x"),
        (choice_source(["<think>"], "f"), "<think>"),
        (regex_source("</thin[k]>[0-9]", "f"), "</think>7"),
    ],
)
def test_the_text_of_a_mark_is_spelled(compiler, source, text):
    """Whatever a mask allows is taken, and the mark itself, which is no text, is not among it."""
    (grammar,) = compiler.compile(source)
    left = text.encode()
    while left:
        allowed = mask(grammar) - set(ENDS)
        for token in allowed:
            assert grammar.accept(token)
            grammar.rollback(1)
        data, token = max(
            (data, token)
            for token in allowed
            if left.startswith(data := compiler.tokenizer.decode_bytes([token]))
        )
        assert not compiler.tokenizer.is_special_token(token)
        assert grammar.accept(token)
        left = left[len(data) :]
    assert mask(grammar) & set(ENDS)


@pytest.mark.parametrize("key", ["a<b", "", " a", "x" * 300])
def test_argument_names_that_cannot_be_written_are_refused(compiler, key):
    tool = OfferedTool("t", {"type": "object", "properties": {key: {"type": "string"}}}, strict=True)
    with pytest.raises(InvalidRequestError, match="argument name"):
        tool_source([tool], MUST, compiler, "tools")
