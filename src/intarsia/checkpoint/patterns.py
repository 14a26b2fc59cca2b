"""Which modules the exclude patterns of a checkpoint name.

A pattern matches whole dot components, never raw substrings: `mlp.gate` is not `mlp.gate_up_proj`, and
`layers.1` is not `layers.11`.

1. `re:` starts a regular expression over the whole name.
2. A pattern with `*`, `?` or `[` is a shell pattern over the whole name; `*` crosses dots.
3. Anything else is the module of that name and everything below it.
4. From producers that listed fragments (modelopt before 0.39, or unnamed) a pattern of rule 3 also matches
   where its components stand in a row inside the name.
"""

from collections.abc import Iterable, Sequence

from intarsia.checkpoint.automaton import Automaton
from intarsia.checkpoint.errors import RecipeError

MAX_LENGTHS = 256
MAX_COMPONENTS = 64

_WILD = frozenset("*?[")


class Patterns:
    """A compiled list of patterns that remembers which of them ever matched."""

    def __init__(self, patterns: Sequence[str], *, legacy: bool = False) -> None:
        self._legacy = legacy
        self._names: set[str] = set()
        self._name_lengths: set[int] = set()
        self._beginnings: tuple[str, ...] | None = None
        self._prefixes: dict[int, set[str]] = {}
        self._automaton = Automaton()
        self._labels: list[str] = []
        self._matched: set[str] = set()
        self.patterns = tuple(dict.fromkeys(patterns))
        self.refused: list[RecipeError] = []
        for pattern in self.patterns:
            self._add(pattern)
        self._name_lengths = {len(name) for name in self._names}
        if not legacy:
            self._beginnings = _beginnings(self.patterns)

    def _add(self, pattern: str) -> None:
        wild = {letter for letter in pattern if letter in _WILD}
        if pattern.startswith("re:"):
            self._compile(pattern)
        elif not wild:
            self._names.add(pattern)
        elif self._is_prefix(pattern, wild):
            self._prefixes.setdefault(len(pattern) - 1, set()).add(pattern[:-1])
        else:
            self._compile(pattern)

    def _is_prefix(self, pattern: str, wild: set[str]) -> bool:
        """The usual shape, a prefix with a star, needs no automaton while there are few lengths of it."""
        known = len(pattern) - 1 in self._prefixes or len(self._prefixes) < MAX_LENGTHS
        return known and wild == {"*"} and pattern.index("*") == len(pattern) - 1

    def _compile(self, pattern: str) -> None:
        try:
            if pattern.startswith("re:"):
                self._automaton.add_regex(pattern[3:], len(self._labels))
            else:
                self._automaton.add_glob(pattern, len(self._labels))
            self._labels.append(pattern)
        except RecipeError as error:
            self.refused.append(error)

    def match(self, names: Iterable[str]) -> str | None:
        """A pattern that matches the module called by any of `names`, or None."""
        if self._beginnings is not None:  # most aliases begin as no pattern does
            beginnings = self._beginnings
            names = [name for name in names if name.startswith(beginnings)]
        hits = [pattern for name in names for pattern in self._hits(name)]
        self._matched.update(hits)
        return hits[0] if hits else None

    def unmatched(self) -> list[str]:
        """The patterns that no call of `match` hit so far, in their order."""
        return [pattern for pattern in self.patterns if pattern not in self._matched]

    def _hits(self, name: str) -> list[str]:
        hits = []
        for length, prefixes in self._prefixes.items():
            if name[:length] in prefixes:
                hits.append(name[:length] + "*")
        if self._names:
            hits += self._named(name)
        if self._labels:
            hits += self._wild(name)
        return hits

    def _wild(self, name: str) -> list[str]:
        try:
            return [self._labels[label] for label in self._automaton.matches(name)]
        except RecipeError as error:  # too costly: say so once, and stop
            self.refused.append(error)
            self._labels.clear()
            return []

    def _named(self, name: str) -> list[str]:
        if self._legacy and name.count(".") < MAX_COMPONENTS:
            parts = name.split(".")
            runs = {
                ".".join(parts[first:last])
                for first in range(len(parts))
                for last in range(first + 1, len(parts) + 1)
            }
            return [run for run in runs if run in self._names]
        lengths = self._name_lengths
        if len(lengths) > MAX_LENGTHS:
            lengths = {at for at, letter in enumerate(name) if letter == "."} | {len(name)}
        return [
            name[:length]
            for length in lengths
            if name[length : length + 1] in ("", ".") and name[:length] in self._names
        ]


def _beginnings(patterns: Sequence[str]) -> tuple[str, ...] | None:
    """What every name that any pattern matches must begin with; None when that cannot be told."""
    beginnings = set()
    for pattern in patterns:
        wild = next((at for at, letter in enumerate(pattern) if letter in _WILD), len(pattern))
        literal = pattern[:wild]
        if not literal or pattern.startswith("re:"):
            return None
        head, dot, _ = literal.partition(".")
        beginnings.add(head + dot)
    return tuple(beginnings) if len(beginnings) <= MAX_LENGTHS else None
