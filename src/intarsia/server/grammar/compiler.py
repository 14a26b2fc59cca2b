"""Compiling grammars within limits, and keeping the compiled ones in a bounded cache."""

import re
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import cast

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from intarsia.core.errors import UsageError
from intarsia.engine.requests import Grammar
from intarsia.server.errors import InvalidRequestError
from intarsia.server.grammar.matcher import MatcherGrammar
from intarsia.server.grammar.sources import BLANKS, Notation, Source

# A line of our own grammar, which means nothing to the client.
_QUOTED = re.compile(r"\s*\d+ \|")
MOST_CACHED = 64
LARGEST_CACHE = 4 << 20
LIMITS = LLParserLimits(
    initial_lexer_fuel=300_000,
    max_grammar_size=200_000,
    max_lexer_states=20_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_items_in_row=2_000,
    verbose_errors=False,
)


class GrammarCompiler:
    """Turns grammar text into what the engine asks before every token. May be called from several threads."""

    def __init__(
        self,
        tokenizer_json: str,
        vocab_size: int,
        ends: Sequence[int],
        *,
        most: int = MOST_CACHED,
        largest: int = LARGEST_CACHE,
    ) -> None:
        """`tokenizer_json`: the content of tokenizer.json; `ends`: the ids that end a reply."""
        self.tokenizer = LLTokenizer(tokenizer_json, n_vocab=vocab_size, eos_token=sorted(ends))
        self._marks = [token for token in range(vocab_size) if self.tokenizer.is_special_token(token)]
        self.hits = 0
        self.misses = 0
        self._ends = frozenset(ends)
        self._vocab_size = vocab_size
        self._most = most
        self._largest = largest
        self._size = 0
        self._compiled: OrderedDict[tuple[str, str], LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._compiled)

    def compile(self, source: Source, count: int = 1) -> tuple[MatcherGrammar, ...]:
        """`count` independent grammars at their beginning.

        Raises InvalidRequestError, naming the field, for a grammar that is malformed, asks for what cannot be
        enforced, or is larger than the limits.
        """
        compiled = self._cached(source.key)
        if compiled is None:
            compiled = self._build(source)
            self._keep(source.key, compiled)
        return tuple(
            MatcherGrammar(
                compiled.deep_copy(), self.tokenizer, self._marks, self._ends, self._vocab_size, *source.key
            )
            for _ in range(count)
        )

    def written(self, grammar: Grammar) -> list[str]:
        """What another process makes the same grammar from; UsageError for one that is none of this class."""
        if not isinstance(grammar, MatcherGrammar):
            raise UsageError("grammar", found=type(grammar).__name__, expected="one that was compiled here")
        return [grammar.notation, grammar.text]

    def read(self, words: Sequence[str]) -> MatcherGrammar:
        """A grammar at its beginning, from what `written` gave on another rank."""
        notation, text = words
        if notation not in ("json", "regex", "lark"):
            raise UsageError("grammar", found=notation, expected="json, regex or lark")
        return self.compile(Source(cast(Notation, notation), text, "grammar"))[0]

    def marker(self, text: str) -> str:
        """How a grammar writes a mark of the model, such as `<tool_call>`: by its id if it is one token."""
        ids = self.tokenizer.tokenize_str(text, parse_special=True)
        if len(ids) == 1 and self.tokenizer.is_special_token(ids[0]):
            return f"<[{ids[0]}]>"
        return f'"{text}"'

    def _cached(self, key: tuple[str, str]) -> LLMatcher | None:
        with self._lock:
            compiled = self._compiled.get(key)
            if compiled is None:
                self.misses += 1
                return None
            self.hits += 1
            self._compiled.move_to_end(key)
            return compiled

    def _keep(self, key: tuple[str, str], compiled: LLMatcher) -> None:
        with self._lock:
            if key not in self._compiled:
                self._size += len(key[1])
            self._compiled[key] = compiled
            while self._compiled and (len(self._compiled) > self._most or self._size > self._largest):
                (_, text), _ = self._compiled.popitem(last=False)
                self._size -= len(text)

    def _build(self, source: Source) -> LLMatcher:
        try:
            matcher = LLMatcher(self.tokenizer, _grammar(source), log_level=0, limits=LIMITS)
            problem = matcher.get_error()
        except ValueError as error:
            problem = str(error)
        if not problem:
            return matcher
        lines = [line for line in problem.split("\n<")[0].splitlines() if not _QUOTED.match(line)]
        first = " ".join(" ".join(lines).split())[:300]
        raise InvalidRequestError(
            f"The grammar cannot be used: {first}", field=source.field, code="invalid_grammar"
        )


def _grammar(source: Source) -> str:
    if source.notation == "json":
        return LLMatcher.grammar_from_json_schema(source.text, overrides={"whitespace_pattern": BLANKS})
    if source.notation == "regex":
        return LLMatcher.grammar_from_regex(source.text)
    return LLMatcher.grammar_from_lark(source.text)
