"""Reasoning and tool calls taken out of growing text, however the text is divided."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.server.output.arguments import ArgumentError, typed
from intarsia.server.output.reasoning import ReplyParts
from intarsia.server.output.tool_calls import ToolCall, ToolCallParser

SCHEMAS = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "exact": {"type": "boolean"},
            "note": {"type": ["string", "null"]},
            "share": {"type": "number"},
            "place": {"$ref": "#/$defs/place"},
        },
        "$defs": {"place": {"type": "object"}},
    },
    "now": {"type": "object", "properties": {}},
}


def call(name, *arguments, end="</tool_call>"):
    body = "".join(f"\n<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>" for key, value in arguments)
    return f"<tool_call>{name}{body}\n{end}"


def parse(text, sizes=(10_000,), *, cut=False):
    """All text and all calls of a reply that arrives in pieces of these sizes, over and over."""
    parser = ToolCallParser(SCHEMAS)
    pieces, at, turn = [], 0, 0
    while at < len(text):
        size = sizes[turn % len(sizes)]
        pieces += parser.push(text[at : at + size])
        at, turn = at + size, turn + 1
    pieces += parser.finish(cut=cut)
    content = "".join(piece for piece in pieces if isinstance(piece, str))
    return content, [
        (piece.name, json.loads(piece.arguments)) for piece in pieces if isinstance(piece, ToolCall)
    ]


CASES = {
    "typed": (
        "Let me look.\n" + call("weather", ("city", "Köln"), ("days", "3"), ("tags", '["a", "b"]')),
        ("Let me look.", [("weather", {"city": "Köln", "days": 3, "tags": ["a", "b"]})]),
    ),
    "one line": (
        "<tool_call>weather<arg_key>city</arg_key><arg_value>5</arg_value></tool_call>",
        ("", [("weather", {"city": "5"})]),
    ),
    "two calls": (call("now") + "\n" + call("now") + "\n", ("", [("now", {}), ("now", {})])),
    "text after": (call("now") + "\n\ndone", ("done", [("now", {})])),
    "Python words": (
        call("weather", ("exact", "True"), ("note", "None")),
        ("", [("weather", {"exact": True, "note": None})]),
    ),
    "value with marks": (
        call("weather", ("city", "a </tool_call> <arg_key> b\n")),
        ("", [("weather", {"city": "a </tool_call> <arg_key> b\n"})]),
    ),
    "never closed": (call("weather", ("city", "Rom"), end=""), ("", [("weather", {"city": "Rom"})])),
    "closed by the next": (
        "<tool_call>now" + call("now"),
        ("", [("now", {}), ("now", {})]),
    ),
    "opening mark of a key missing": (
        "<tool_call>weather\ncity</arg_key>\n<arg_value>Rom</arg_value>\ndays</arg_key><arg_value>2</arg_value></tool_call>",
        ("", [("weather", {"city": "Rom", "days": 2})]),
    ),
    "reference": (call("weather", ("place", '{"x": 1}')), ("", [("weather", {"place": {"x": 1}})])),
    "unknown tool": (
        "a " + call("rm", ("path", "/")) + " b",
        ("a " + call("rm", ("path", "/")) + " b", []),
    ),
    "wrong type": (call("weather", ("days", "soon")), (call("weather", ("days", "soon")), [])),
    "one bracket short": (call("weather", ("tags", '["a"')), (call("weather", ("tags", '["a"')), [])),
    "duplicate key": (
        call("weather", ("days", "1"), ("days", "2")),
        (call("weather", ("days", "1"), ("days", "2")), []),
    ),
    "cut open": ("<tool_call>weather\n<arg_key>ci", ("<tool_call>weather\n<arg_key>ci", [])),
    "half a mark": ("a <tool_ca", ("a <tool_ca", [])),
    "only text": ("  a < b <tool> c \n", ("  a < b <tool> c \n", [])),
    "garbage inside": (
        "<tool_call>now\n<arg_key>a</arg_key>junk<arg_value>1</arg_value></tool_call> x",
        ("<tool_call>now\n<arg_key>a</arg_key>junk<arg_value>1</arg_value></tool_call> x", []),
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("sizes", [(10_000,), (1,), (3, 7)])
def test_calls_and_text(name, sizes):
    text, expected = CASES[name]
    assert parse(text, sizes) == expected


def test_a_call_cut_by_the_limit_is_never_a_call():
    text = call("weather", ("city", "Rom"), end="")
    assert parse(text, cut=True) == (text, [])


@given(
    st.lists(st.sampled_from(sorted(CASES)), min_size=1, max_size=4), st.lists(st.integers(1, 9), min_size=1)
)
def test_division_into_pushes_does_not_matter(names, sizes):
    text = " ".join(CASES[name][0] for name in names)
    assert parse(text, sizes) == parse(text)


MARKS = [
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "now",
    " ",
    "\n",
    "x",
]


@given(st.lists(st.sampled_from(MARKS), max_size=20), st.lists(st.integers(1, 9), min_size=1))
def test_nothing_but_white_space_and_calls_disappears(parts, sizes):
    text = "".join(parts)
    content, calls = parse(text, sizes)
    assert (content, calls) == parse(text)
    if not calls:
        assert content == text


def split(text, sizes, *, inside):
    splitter = ReplyParts(inside=inside)
    reasoning = content = ""
    at = turn = 0
    while at < len(text):
        size = sizes[turn % len(sizes)]
        new = splitter.push(text[at : at + size])
        reasoning, content = reasoning + new[0], content + new[1]
        at, turn = at + size, turn + 1
    new = splitter.finish()
    return reasoning + new[0], content + new[1]


@pytest.mark.parametrize("sizes", [(10_000,), (1,), (2, 5)])
@pytest.mark.parametrize(
    ("text", "inside", "expected"),
    [
        ("I think.\n</think>\n\nSo: 4", True, ("I think.", "So: 4")),
        ("never closed", True, ("never closed", "")),
        ("  \n", True, ("", "")),
        ("</think>4", True, ("", "4")),
        ("a </thin b</think>c</think>", True, ("a </thin b", "c</think>")),
        ("<think>a</think>b", False, ("a", "b")),
        ("\n<think>\na", False, ("a", "")),
        ("no <think> here", False, ("", "no <think> here")),
        ("<thin", False, ("", "<thin")),
        ("", False, ("", "")),
    ],
)
def test_reasoning_is_apart_from_content(text, inside, expected, sizes):
    assert split(text, sizes, inside=inside) == expected


@pytest.mark.parametrize(
    ("raw", "schema", "value"),
    [
        ("5", {"type": "string"}, "5"),
        (" 5 ", {"type": "integer"}, 5),
        ("5.0", {"type": "integer"}, 5),
        ("5", {"type": "number"}, 5),
        ("null", {"type": ["string", "null"]}, None),
        ("nul", {"type": ["string", "null"]}, "nul"),
        ('"a"', {}, "a"),
        ("a b", {}, "a b"),
        ("a", {"enum": ["a", "b"]}, "a"),
        ("2", {"anyOf": [{"type": "integer"}, {"type": "null"}]}, 2),
        ("x", {"allOf": [{"type": "string"}]}, "x"),
        ("7", {"const": 7}, 7),
        ("[1]", {"$ref": "#/$defs/a~1b"}, [1]),
        ("[1]", {"$ref": "#/nowhere"}, [1]),
    ],
)
def test_arguments_get_the_type_of_their_schema(raw, schema, value):
    result = typed("x", raw, schema, {"$defs": {"a/b": {"type": "array"}}})
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize(
    ("raw", "schema"),
    [
        ("five", {"type": "integer"}),
        ("1.5", {"type": "integer"}),
        ("true", {"type": "integer"}),
        ("NaN", {"type": "number"}),
        ('{"a": 1, "a": 2}', {"type": "object"}),
        ("[", {"type": ["array", "null"]}),
    ],
)
def test_arguments_of_another_type_are_refused(raw, schema):
    with pytest.raises(ArgumentError):
        typed("x", raw, schema, {})


def test_a_schema_that_refers_to_itself_ends():
    schema = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    assert typed("x", "5", schema, schema) == 5
