"""Strict JSON: what is read, and what is refused although Python's own decoder takes it."""

import json

import pytest

from intarsia.core.json import MAX_DEPTH, JsonError, parse, parse_object


@pytest.mark.parametrize(
    "text",
    ["{}", "[]", '{"a": [1, -2, 1.5, true, null, "x\\u00e9"]}', ' {"a":1}\n', '"\\ud83d\\ude00"', "0"],
)
def test_reads_what_json_reads(text):
    assert parse(text.encode(), "x") == json.loads(text)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "'c' twice"),
        (b'{"a": 1, "\\u0061": 2}', "'a' twice"),
        (b"[NaN]", "NaN"),
        (b"[-Infinity]", "-Infinity"),
        (b'"\\ud800"', "lone surrogate"),
        (b'{"\\udc00x": 1}', "lone surrogate"),
        (b"\xff", "not UTF-8"),
        (b"\xef\xbb\xbf{}", "malformed"),
        (b"", "malformed"),
        (b"{} {}", "malformed"),
        (b'"\n"', "malformed"),
        (b"[" * 100_000, "nesting"),
        (b'{"a":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), "nesting"),
        (b"9" * 5000, "number"),
    ],
)
def test_refuses(data, found):
    with pytest.raises(JsonError) as caught:
        parse(data, "some.json")
    assert found in str(caught.value)
    assert caught.value.where == "some.json"
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_depth_at_the_limit_is_fine():
    parse(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, "x")
    with pytest.raises(JsonError, match="nesting"):
        parse(b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "x")


def test_limits_hold_before_decoding():
    with pytest.raises(JsonError, match="12 bytes, more than 10"):
        parse(b'"0123456789"', "x", max_bytes=10)
    with pytest.raises(JsonError, match="values"):
        parse(b"[" + b"[]," * 100 + b"[]]", "x", max_values=100)


def test_an_object_is_an_object():
    assert parse_object(b'{"a": 1}', "x") == {"a": 1}
    with pytest.raises(JsonError, match="an array"):
        parse_object(b"[]", "x")


def test_integers_only():
    assert parse(b"[1]", "x", integers_only=True) == [1]
    for text in (b"[1.0]", b"[1e3]"):
        with pytest.raises(JsonError, match="only integers"):
            parse(text, "x", integers_only=True)
