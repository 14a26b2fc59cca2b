"""Drawing text from templates, under the rule that splits training text from held-out text.

The split goes by sentence: a piece of a document between sentence ends, line breaks and special tokens that
has five words or more. Its hash decides on which side it may appear. A line of digits and signs alone is no
sentence: for arithmetic the unordered pair of operands decides instead, whatever the operation and the words.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable
from functools import cache

from .words import LISTS, SYLLABLES

SHARE = 8  # one sentence, and one pair of operands, in eight is held out
MIN_WORDS = 5
TRIES = 400
_ENDS = re.compile(r"""(?<=[.!?])["')]*\s+|\n+|<[^<>\s]{2,16}>""")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiouAEIOU])")
_TOKEN = re.compile(r"[{}|]|[$#]\w+|[^{}|$#]+|[$#]")


class UnluckyError(Exception):
    """No allowed wording turned up; the document is drawn again from the next seed."""


def sentences(text: str) -> list[str]:
    """The pieces of `text` that count as sentences."""
    pieces = (piece.strip() for piece in _ENDS.split(text))
    return [p for p in pieces if p.count(" ") >= MIN_WORDS - 1 and any(c.isalpha() for c in p)]


def held_out(sentence: str) -> bool:
    """Whether the sentence belongs to the held-out side."""
    return zlib.crc32(sentence.encode()) % SHARE == 0


def pair_held_out(a: int, b: int) -> bool:
    """Whether an unordered pair of operands is held out; pairs of small numbers never are."""
    if max(a, b) < 20:
        return False
    return zlib.crc32(f"{min(a, b)},{max(a, b)}".encode()) % SHARE == 1


@cache
def parse(template: str) -> tuple[tuple[str, object], ...]:
    """Template text -> sequence of ("text", s), ("state", name), ("draw", list) and ("choice", options)."""
    tokens = _TOKEN.findall(template)
    sequence, position = _sequence(tokens, 0, top=True)
    if position != len(tokens):
        raise ValueError(f"unbalanced template: {template}")
    return sequence


def _sequence(tokens: list[str], i: int, top: bool = False) -> tuple[tuple[tuple[str, object], ...], int]:
    out: list[tuple[str, object]] = []
    while i < len(tokens):
        token = tokens[i]
        if token == "{":
            options = []
            while token != "}":
                option, i = _sequence(tokens, i + 1)
                options.append(option)
                token = tokens[i]
            out.append(("choice", tuple(options)))
        elif token in "}|" and not top:
            return tuple(out), i
        elif token[0] == "$" and len(token) > 1:
            out.append(("state", token[1:]))
        elif token[0] == "#" and len(token) > 1:
            out.append(("draw", token[1:]))
        else:
            out.append(("text", token))
        i += 1
    return tuple(out), i


class Writer:
    """Collects one document. `held` says for which side of the split it writes."""

    def __init__(self, seed: int, held: bool) -> None:
        self.rng = random.Random(seed)
        self.held = held
        self.state: dict[str, str] = {}

    def pick(self, name: str) -> str:
        """A random word of a list."""
        words = LISTS[name]
        return words[int(self.rng.random() * len(words))]

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def invented(self) -> str:
        """A word that means nothing, of two or three syllables."""
        return "".join(self.rng.choice(SYLLABLES) for _ in range(self.rng.choice((2, 2, 3))))

    def pair(self, low: int, high: int, small: int | None = None) -> tuple[int, int]:
        """Two operands of this document's side of the split (when held out, at least one is 20 or more)."""
        for _ in range(TRIES):
            a, b = self.rng.randint(low, high), self.rng.randint(low if small is None else small, high)
            if pair_held_out(a, b) == self.held:
                return a, b
        raise UnluckyError

    def fits(self, text: str) -> bool:
        return all(held_out(s) == self.held for s in sentences(text))

    def until_fits(self, make: Callable[[], str]) -> str:
        """Draws until every sentence is on this document's side."""
        for _ in range(TRIES):
            text = make()
            if self.fits(text):
                return text
        raise UnluckyError

    def fill(self, template: str) -> str:
        """One wording of a template, with a/an put right."""
        text = self._expand(parse(template))
        return _ARTICLE.sub(r"\1n ", text)

    def say(self, *templates: str) -> str:
        """One allowed wording of one of the templates."""
        return self.until_fits(lambda: self.fill(templates[int(self.rng.random() * len(templates))]))

    def _expand(self, sequence: tuple[tuple[str, object], ...]) -> str:
        out = []
        for kind, value in sequence:
            if kind == "text":
                out.append(value)
            elif kind == "state":
                out.append(self.state[value])  # type: ignore[index]
            elif kind == "draw":
                out.append(self.pick(value))  # type: ignore[arg-type]
            else:
                options: tuple[tuple[tuple[str, object], ...], ...] = value  # type: ignore[assignment]
                out.append(self._expand(options[int(self.rng.random() * len(options))]))
        return "".join(out)  # type: ignore[arg-type]
