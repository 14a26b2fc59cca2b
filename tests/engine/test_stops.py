"""Stop strings: nothing of one is ever shown, and nothing else is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.core.config import GenerationSettings
from intarsia.engine.drafting import FixedDepth
from intarsia.engine.generate import Generation
from intarsia.engine.text import ReplyText
from intarsia.engine.text.stops import StopStrings
from tests.engine.scripted import ScriptedDrafter, never

from .fakes import VOCAB, HashRunner


def feed(stops, pieces):
    scanner = StopStrings(stops)
    shown = [scanner.push(piece) for piece in pieces]
    return [*shown, scanner.finish()], scanner.matched


@pytest.mark.parametrize(
    ("stops", "pieces", "shown", "matched"),
    [
        (["END"], ["abc", "E", "N", "D", "x"], ["abc", "", "", "", "", ""], "END"),
        (["END"], ["abcE", "Nx"], ["abc", "ENx", ""], None),
        (["END"], ["abcEN"], ["abc", "EN"], None),
        (["END"], ["aENDbENDc"], ["a", ""], "END"),
        (["aab"], ["aaab"], ["a", ""], "aab"),
        (["aab"], ["a", "a", "a", "b"], ["", "", "a", "", ""], "aab"),
        (["b", "abc"], ["xabc"], ["xa", ""], "b"),
        (["bc", "abc"], ["xabc"], ["x", ""], "abc"),
        (["\n\n"], ["one\n", "two\n", "\n"], ["one", "\ntwo", "", ""], "\n\n"),
        ([], ["any", "thing"], ["any", "thing", ""], None),
    ],
)
def test_cases(stops, pieces, shown, matched):
    assert feed(stops, pieces) == (shown, matched)


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=3),
    st.text("abc", max_size=30),
    st.lists(st.integers(1, 5), min_size=30, max_size=30),
)
def test_division_does_not_matter(stops, text, sizes):
    pieces, rest = [], text
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    shown, matched = feed(stops, [*pieces, rest])
    # by definition: the shortest beginning of the text that ends in a stop string, without that string
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            assert matched == max(ending, key=len)
            assert "".join(shown) == text[: end - len(matched)]
            return
    assert matched is None
    assert "".join(shown) == text


class LetterPieces:
    """Token ids as letters, so that stop strings fall across tokens of the fake network."""

    def token_bytes(self, token):
        return b"" if token == 3 else bytes([97 + token % 5, 97 + token % 3])


@pytest.mark.parametrize("depth", [0, 2, 4])
def test_generation_stops_at_the_same_token_with_drafts(depth):
    prompt = [1, 2, 3]
    plain = Generation(
        HashRunner(), prompt, GenerationSettings(max_tokens=30), text=ReplyText(LetterPieces())
    ).result
    for begin in range(0, 40, 3):
        stop = plain.text[begin : begin + 3]
        first = plain.text.find(stop)
        runner = HashRunner()
        generation = Generation(
            runner,
            prompt,
            GenerationSettings(max_tokens=30, stop=(stop,)),
            text=ReplyText(LetterPieces(), (stop,)),
            drafter=ScriptedDrafter([*prompt, *plain.tokens], VOCAB, never),
            depth=FixedDepth(depth),
        )
        shown = [delta.text for delta in generation]
        result = generation.result
        assert "".join(shown) == result.text == plain.text[:first]
        assert result.finish_reason == "stop"
        assert result.stopped_by == stop
        assert result.tokens == plain.tokens[: len(result.tokens)]
        assert runner.committed == [*prompt, *result.tokens[:-1]]
        decoded = b"".join(map(LetterPieces().token_bytes, result.tokens)).decode()
        assert decoded.startswith(result.text + stop)
        assert len(decoded) - len(result.text + stop) < 2  # the last token completed the stop string


def test_text_waits_for_a_stop_string_but_is_not_lost_at_the_end():
    prompt = [1, 2, 3]
    plain = Generation(
        HashRunner(), prompt, GenerationSettings(max_tokens=6), text=ReplyText(LetterPieces())
    ).result
    stop = plain.text[-1] + "never"
    held = Generation(
        HashRunner(),
        prompt,
        GenerationSettings(max_tokens=6, stop=(stop,)),
        text=ReplyText(LetterPieces(), (stop,)),
    )
    deltas = list(held)
    assert "".join(delta.text for delta in deltas) == plain.text
    assert held.result.finish_reason == "length"
    assert held.result.stopped_by is None
