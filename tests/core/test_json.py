"""Strict JSON: what is refused, and why."""

import pytest

from intarsia.core.json import JsonError, parse, parse_object


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"1e999", "too large"),
        (b'{"a": [-1e400]}', "too large"),
        (b"NaN", "NaN"),
        (b"[-Infinity]", "Infinity"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b'"\\ud800"', "surrogate"),
        (b'"\xff"', "UTF-8"),
        (b"[1,]", "malformed"),
        (b"", "malformed"),
        (b"[" * 70 + b"]" * 70, "nesting"),
        (b"9" * 5000, "unreadable"),
    ],
)
def test_what_is_refused(text, found):
    with pytest.raises(JsonError, match=found):
        parse(text, "here")


def test_what_is_read():
    assert parse(b'{"a": [1, 1.5, 1e300, "\\ud83d\\ude00", null, true]}', "here") == {
        "a": [1, 1.5, 1e300, "\U0001f600", None, True]
    }
    with pytest.raises(JsonError, match="an array"):
        parse_object(b"[]", "here")


def test_limits():
    with pytest.raises(JsonError, match="more than 3"):
        parse(b"[1, 2]", "here", max_bytes=3)
    with pytest.raises(JsonError, match="values"):
        parse(b"[1,2,3,4]", "here", max_values=3)
