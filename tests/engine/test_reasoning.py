"""Thinking apart from answering, however the text is divided."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.engine.text import ReasoningSplitter, begins_thinking


def split(text, thinking, sizes=()):
    splitter, parts, rest = ReasoningSplitter(thinking), [], text
    for size in sizes:
        parts += splitter.push(rest[:size])
        rest = rest[size:]
    parts += splitter.push(rest) + splitter.finish()
    return tuple("".join(text for part, text in parts if part == kind) for kind in ("thinking", "answer"))


CASES = [
    ("hm</think>yes", True, ("hm", "yes")),
    ("hm", True, ("hm", "")),
    ("hm</thin", True, ("hm</thin", "")),
    ("</think>yes", True, ("", "yes")),
    ("yes", False, ("", "yes")),
    ("<think>hm</think>yes", False, ("hm", "yes")),
    ("\n<think>hm</think>yes", False, ("hm", "\nyes")),
    ("a < b <think>no</think>", False, ("", "a < b <think>no</think>")),
    ("hm</think>yes</think><think>", True, ("hm", "yes</think><think>")),
    ("hm</think><think>b", True, ("hm", "<think>b")),
    ("<thin", False, ("", "<thin")),
    ("", True, ("", "")),
]


@pytest.mark.parametrize(("text", "thinking", "expected"), CASES)
def test_cases(text, thinking, expected):
    assert split(text, thinking) == expected


@given(st.sampled_from(CASES), st.lists(st.integers(1, 4), max_size=20))
def test_division_does_not_matter(case, sizes):
    text, thinking, expected = case
    assert split(text, thinking, sizes) == expected


def test_a_prompt_that_opens_the_block():
    assert begins_thinking("<|assistant|><think>")
    assert begins_thinking("<|assistant|>\n<think>\n")
    assert not begins_thinking("<|assistant|><think></think>")
