"""Grammars: built, compiled within limits, followed, rolled back."""

import json
import random
import time

import pytest
import torch

from intarsia.server.errors import InvalidRequestError
from intarsia.server.grammar.compiler import GrammarCompiler
from intarsia.server.grammar.matcher import GrammarError
from intarsia.server.grammar.sources import (
    choice_source,
    lark_source,
    quoted,
    regex_source,
    schema_source,
)
from intarsia.server.grammar.tool_grammar import CallRules, OfferedTool, tool_source
from tests.server.serving import DEMO, VOCAB

ENDS = (0, 7, 9)
WORDS = VOCAB // 32


@pytest.fixture(scope="module")
def compiler():
    return GrammarCompiler((DEMO / "tokenizer.json").read_text(), VOCAB, ENDS)


def tokens(compiler, text):
    return compiler.tokenizer.tokenize_str(text, parse_special=True)


def mask(grammar):
    words = torch.full((WORDS,), -1, dtype=torch.int32)
    grammar.fill(words)
    bits = words.numpy().view("uint8")
    return {token for token in range(VOCAB) if bits[token // 8] >> token % 8 & 1}


def follows(compiler, source, text):
    """True if the grammar takes all of the text and then an end, and no end inside it where that is wrong."""
    (grammar,) = compiler.compile(source)
    for token in tokens(compiler, text):
        allowed = token in mask(grammar)
        assert grammar.accept(token) is allowed
        if not allowed:
            return False
    ends = bool(mask(grammar) & set(ENDS))
    assert grammar.accept(ENDS[1]) is ends
    return ends


PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("source", "text", "fits"),
    [
        (schema_source(PERSON, "f"), '{"name": "Ada", "age": 36}', True),
        (schema_source(PERSON, "f"), '{"name":"Ada","age":36}', True),
        (schema_source(PERSON, "f"), '{"name": "Ada"}', False),
        (schema_source(PERSON, "f"), '{"name": "Ada", "age": "36"}', False),
        (schema_source(PERSON, "f"), '{"name": "Ada", "age": 3', False),
        (schema_source(PERSON, "f"), '{"name": "é 漢", "age": 36}', True),
        (schema_source(PERSON, "f"), "{" + " " * 40 + '"name": "Ada", "age": 36}', False),
        (regex_source("[a-c]{2,3}", "f"), "abc", True),
        (regex_source("[a-c]{2,3}", "f"), "a", False),
        (choice_source(['say "hi"', "two\nlines"], "f"), 'say "hi"', True),
        (choice_source(['say "hi"', "two\nlines"], "f"), "two\nlines", True),
        (choice_source(["ja", "nein"], "f"), "no", False),
        (lark_source('start: "a" b+\nb: /[0-9]/ ";"', "f"), "a1;2;", True),
        (lark_source('start: "a" b+\nb: /[0-9]/ ";"', "f"), "a1;2", False),
    ],
)
def test_texts_that_fit_and_texts_that_do_not(compiler, source, text, fits):
    assert follows(compiler, source, text) is fits


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


@pytest.mark.parametrize("seed", range(20))
def test_rolling_back_is_as_if_it_never_was(compiler, seed):
    dice = random.Random(seed)
    source = schema_source(
        {"type": "object", "properties": {"a": {"type": "array"}, "b": {"type": "integer"}}}, "f"
    )
    drafted, plain = compiler.compile(source, 2)
    for _ in range(12):
        before = mask(plain)
        taken = 0
        for _ in range(dice.randint(0, 4)):
            token = dice.choice(sorted(mask(drafted)))
            assert drafted.accept(token)
            taken += 1
            if token in ENDS:
                break
        drafted.rollback(taken)
        assert mask(drafted) == before
        token = dice.choice(sorted(before))
        assert drafted.accept(token)
        assert plain.accept(token)
        assert drafted.finished == plain.finished
        if token in ENDS:
            break


def test_an_end_can_be_taken_back(compiler):
    (grammar,) = compiler.compile(choice_source(["a"], "f"))
    (token,) = tokens(compiler, "a")
    assert not grammar.accept(ENDS[0])
    assert grammar.accept(token)
    assert grammar.finished
    assert mask(grammar) == set(ENDS)
    assert grammar.accept(ENDS[0])
    assert not grammar.accept(token)
    grammar.rollback(2)
    assert not grammar.finished
    assert token in mask(grammar)
    with pytest.raises(GrammarError):
        grammar.rollback(1)


def test_a_mask_of_another_size_is_refused(compiler):
    (grammar,) = compiler.compile(choice_source(["a"], "f"))
    with pytest.raises(GrammarError):
        grammar.fill(torch.zeros(WORDS - 1, dtype=torch.int32))


@pytest.mark.parametrize(
    "source",
    [
        lark_source("start: nothing", "f"),
        lark_source("start: %json {", "f"),
        regex_source("(", "f"),
        regex_source("a(?=b)", "f"),
        schema_source({"if": {}}, "f"),
        schema_source({"type": "nothing"}, "f"),
        schema_source({"$ref": "http://127.0.0.1/x"}, "f"),
        schema_source(
            {
                "allOf": [
                    {"anyOf": [{"properties": {f"{i}{j}": {"type": "integer"}}} for i in range(12)]}
                    for j in range(6)
                ]
            },
            "f",
        ),
    ],
)
def test_what_cannot_be_enforced_or_explodes_is_refused_by_name(compiler, source):
    begun = time.monotonic()
    with pytest.raises(InvalidRequestError) as caught:
        compiler.compile(source)
    assert (caught.value.field, caught.value.code) == ("f", "invalid_grammar")
    assert time.monotonic() - begun < 20  # bounded at all; how fast is no matter here


@pytest.mark.parametrize(
    "pattern", ["(a+)+b", "(.*a){20}[ab]{20}", "((a{1,500}){1,500}){1,500}", "(a|b)*a(a|b){20}"]
)
def test_patterns_that_explode_elsewhere_end_or_fail_within_their_limits(compiler, pattern):
    try:
        (grammar,) = compiler.compile(regex_source(pattern, "f"))
        for token in tokens(compiler, "abababab" * 8):
            mask(grammar)
            grammar.accept(token)
    except (InvalidRequestError, GrammarError):
        pass


def test_schemas_have_a_size(compiler):
    with pytest.raises(InvalidRequestError, match="characters"):
        schema_source({"enum": ["x" * 1000] * 300}, "f")
    with pytest.raises(InvalidRequestError, match="x-guidance"):
        schema_source({"x-guidance": {"lenient": True}}, "f")


def test_the_cache_is_bounded_and_shares_equal_grammars():
    text = (DEMO / "tokenizer.json").read_text()
    compiler = GrammarCompiler(text, VOCAB, ENDS, most=3, largest=1000)
    for number in range(10):
        compiler.compile(choice_source([f"{number}"], "f"))
        assert len(compiler) <= 3
    compiler.compile(choice_source(["9"], "another field"))
    assert (compiler.hits, compiler.misses) == (1, 10)
    compiler.compile(choice_source(["x" * 990], "f"))
    assert len(compiler) <= 1


def test_grammars_of_one_source_are_independent(compiler):
    first, second = compiler.compile(choice_source(["ab"], "f"), 2)
    before = mask(second)
    assert first.accept(tokens(compiler, "a")[0])
    assert mask(second) == before


@pytest.mark.parametrize("text", ['a"b', "a\\b", "line\nbreak", "tab\t", "é漢🎉", "\x01"])
def test_any_text_can_be_quoted(compiler, text):
    assert json.loads(quoted(text)) == text
    assert follows(compiler, choice_source([text], "f"), text)
