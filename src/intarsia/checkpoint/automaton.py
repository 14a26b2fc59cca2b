"""Matching names against globs and regular expressions in linear time.

Patterns come from a checkpoint, and `re` backtracks: a pattern such as `(a+)+$` would hang it. Here all
patterns become one nondeterministic automaton, followed state set by state set; the sets met are remembered,
so that a name usually costs one dictionary look-up a character however many patterns there are.

Supported in expressions: literals, `.`, `\\d`, `\\w`, escapes, classes, groups, `|`, `* + ?` and anchors at
the ends. Anything else (back references, look-around, counted repeats) is refused.
"""

from intarsia.checkpoint.errors import RecipeError

MAX_STATES = 30_000
MAX_WORK = 4_000_000
MAX_DEPTH = 20
MAX_KNOWN_SETS = 20_000

_DIGITS = frozenset("0123456789")
_WORD = _DIGITS | frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_META = frozenset(".^$*+?{}[]\\|()")

# (characters, negated): a test of one character; (empty, True) accepts any.
_Test = tuple[frozenset[str], bool]
_ANY: _Test = (frozenset(), True)


class Automaton:
    """All patterns added so far; `matches` tells which of them match a whole name."""

    def __init__(self) -> None:
        self._empty_moves: list[list[int]] = [[]]
        self._moves: list[tuple[_Test, int] | None] = [None]
        self._accepts: dict[int, int] = {}
        self._known: dict[frozenset[int], dict[str, frozenset[int]]] = {}
        self._work = 0

    def add_glob(self, pattern: str, label: int) -> None:
        """Add a shell pattern: `*` crosses dots, `?` is one character, `[..]` a class."""
        state, position = self._start(), 0
        while position < len(pattern):
            letter = pattern[position]
            position += 1
            if letter == "*":
                state = self._loop(state, _ANY)
            elif letter == "?":
                state = self._step(state, _ANY)
            elif letter == "[" and pattern.find("]", position + 1) > 0:
                test, position = _class(pattern, position, "!")
                state = self._step(state, test)
            else:
                state = self._step(state, (frozenset(letter), False))
        self._accepts[state] = label

    def add_regex(self, pattern: str, label: int) -> None:
        """Add a regular expression that must match the whole name. Raises RecipeError when unsupported."""
        parser = _Parser(self, pattern)
        self._accepts[parser.parse(self._start())] = label

    def matches(self, name: str) -> set[int]:
        """Labels of the patterns that match all of `name`."""
        states = self._close({0})
        for letter in name:
            following = self._known.setdefault(states, {})
            target = following.get(letter)
            if target is None:
                target = following[letter] = self._advance(states, letter)
            if not target:
                return set()
            states = target
        return {self._accepts[state] for state in states if state in self._accepts}

    def _advance(self, states: frozenset[int], letter: str) -> frozenset[int]:
        if len(self._known) > MAX_KNOWN_SETS:
            self._known.clear()
        reached = set()
        for state in states:
            move = self._moves[state]
            if move is not None and (letter in move[0][0]) != move[0][1]:
                reached.add(move[1])
        return self._close(reached)

    def _close(self, states: set[int]) -> frozenset[int]:
        pending = list(states)
        while pending:
            for target in self._empty_moves[pending.pop()]:
                if target not in states:
                    states.add(target)
                    pending.append(target)
        self._work += len(states) + 1
        if self._work > MAX_WORK:
            raise _refused("name patterns", "patterns that take too long to match")
        return frozenset(states)

    # Building. State 0 leads to the start of every pattern.

    def _start(self) -> int:
        self._known.clear()
        start = self.new_state()
        self._empty_moves[0].append(start)
        return start

    def new_state(self) -> int:
        """A state without moves."""
        if len(self._moves) >= MAX_STATES:
            raise _refused("name patterns", f"more than {MAX_STATES:,} characters of wildcard patterns")
        self._empty_moves.append([])
        self._moves.append(None)
        return len(self._moves) - 1

    def link(self, source: int, target: int) -> None:
        """Allow moving from `source` to `target` without reading a character."""
        self._empty_moves[source].append(target)

    def _step(self, state: int, test: _Test) -> int:
        target = self.new_state()
        self._moves[state] = (test, target)
        return target

    def _loop(self, state: int, test: _Test) -> int:
        inner, target = self.new_state(), self.new_state()
        self.link(state, inner)
        self._moves[inner] = (test, inner)
        self.link(inner, target)
        return target

    def step(self, state: int, test: _Test) -> int:
        """A new state reached from a fresh copy of `state` by one character."""
        origin = self.new_state()
        self.link(state, origin)
        return self._step(origin, test)


class _Parser:
    """Recursive descent over one expression; every method returns the state it ends in."""

    def __init__(self, automaton: Automaton, pattern: str) -> None:
        self.automaton, self.pattern, self.position, self.depth = automaton, pattern, 0, 0
        if pattern.startswith("^"):
            self.position = 1
        self.end = len(pattern) - (pattern.endswith("$") and not pattern.endswith("\\$"))

    def parse(self, state: int) -> int:
        state = self._alternatives(state)
        if self.position != self.end:
            raise self._refused("an unbalanced ')'")
        return state

    def _alternatives(self, state: int) -> int:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self._refused("deep nesting")
        target = self.automaton.new_state()
        self.automaton.link(self._sequence(state), target)
        while self._peek() == "|":
            self.position += 1
            self.automaton.link(self._sequence(state), target)
        self.depth -= 1
        return target

    def _sequence(self, state: int) -> int:
        while self._peek() not in ("", "|", ")"):
            start = self.automaton.new_state()
            self.automaton.link(state, start)
            state = self._quantified(start, self._atom(start))
        return state

    def _quantified(self, start: int, end: int) -> int:
        quantifier = self._peek()
        if quantifier in ("*", "+", "?"):
            self.position += 1
            target = self.automaton.new_state()
            self.automaton.link(end, target)
            if quantifier != "+":
                self.automaton.link(start, target)
            if quantifier != "?":
                self.automaton.link(end, start)
            if self._peek() in ("*", "+", "{"):
                raise self._refused("a repeated repeat")
            if self._peek() == "?":  # laziness does not change what a whole name matches
                self.position += 1
            return target
        if quantifier == "{":
            raise self._refused("a counted repeat")
        return end

    def _atom(self, state: int) -> int:
        letter = self.pattern[self.position]
        self.position += 1
        if letter == "(":
            return self._group(state)
        if letter == ".":
            return self.automaton.step(state, _ANY)
        if letter == "[":
            if self.pattern.find("]", self.position + 1) < 0:
                raise self._refused("an unfinished class")
            test, self.position = _class(self.pattern, self.position, "^")
            return self.automaton.step(state, test)
        if letter == "\\":
            return self.automaton.step(state, self._escape())
        if letter in _META:
            raise self._refused(f"{letter!r}")
        return self.automaton.step(state, (frozenset(letter), False))

    def _group(self, state: int) -> int:
        if self._peek() == "?":
            if self.pattern[self.position : self.position + 2] != "?:":
                raise self._refused("a special group")
            self.position += 2
        end = self._alternatives(state)
        if self._peek() != ")":
            raise self._refused("an unbalanced '('")
        self.position += 1
        return end

    def _escape(self) -> _Test:
        letter = self._peek()
        self.position += 1
        if letter == "d":
            return _DIGITS, False
        if letter == "w":
            return _WORD, False
        if letter == "" or letter.isalnum():
            raise self._refused(f"the escape \\{letter}")
        return frozenset(letter), False

    def _peek(self) -> str:
        return self.pattern[self.position] if self.position < self.end else ""

    def _refused(self, what: str) -> RecipeError:
        return _refused(f"pattern {self.pattern[:120]!r}", what)


def _class(pattern: str, position: int, negation: str) -> tuple[_Test, int]:
    """A character class whose `[` was just read; returns the test and the position behind `]`."""
    negated = pattern[position] == negation
    position += negated
    end = pattern.index("]", position + 1)
    letters: set[str] = set()
    body = pattern[position:end]
    index = 0
    while index < len(body):
        if body[index] == "\\":
            raise _refused(f"pattern {pattern[:120]!r}", "an escape inside a class")
        if index + 2 < len(body) and body[index + 1] == "-":
            first, last = ord(body[index]), ord(body[index + 2])
            if last - first > 256:
                raise _refused(f"pattern {pattern[:120]!r}", "a very wide class")
            letters.update(map(chr, range(first, last + 1)))
            index += 3
        else:
            letters.add(body[index])
            index += 1
    return (frozenset(letters), negated), end + 1


def _refused(where: str, what: str) -> RecipeError:
    return RecipeError(
        where,
        found=what,
        expected="literals, '.', classes, groups, '|', '*', '+', '?'",
        action="write the pattern with these",
    )
