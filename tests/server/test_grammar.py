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
from tests.server.grammars import ENDS, PERSON, WORDS, follows, mask, tokens
from tests.server.serving import DEMO, VOCAB


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
