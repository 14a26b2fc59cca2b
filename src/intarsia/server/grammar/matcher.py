"""One reply's grammar, as the engine asks for it before every token."""

from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from torch import Tensor

from intarsia.core.errors import IntarsiaError


class GrammarError(IntarsiaError):
    """A grammar that met a limit in the middle of a reply."""


class MatcherGrammar:
    """The engine's `Grammar` over llguidance.

    Tokens that end the reply are counted here, so that drafts which end it can be taken back like any other.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        tokenizer: LLTokenizer,
        marks: Sequence[int],
        ends: frozenset[int],
        vocab_size: int,
        notation: str = "",
        text: str = "",
    ) -> None:
        """`marks` are tokens that stand for themselves and no text, `ends` those of them that end a reply;
        `notation` and `text` are those it was compiled from, by which another rank makes its own.
        """
        self.notation, self.text = notation, text
        self._matcher = matcher
        self._tokenizer = tokenizer
        self._marks = marks
        self._ends = ends
        self._bytes = -(-vocab_size // 32) * 4
        self._ended = 0
        self._taken = 0

    def fill(self, words: Tensor) -> None:
        """Write the mask of the next token into `words`, int32 [ceil(V / 32)] on the CPU.

        Raises GrammarError when the grammar became too expensive to follow.
        """
        if words.nbytes != self._bytes or words.device.type != "cpu" or not words.is_contiguous():
            raise GrammarError(
                "grammar", found=f"{words.nbytes} bytes on {words.device}", expected=f"{self._bytes} on cpu"
            )
        self._matcher.unsafe_compute_mask_ptr(words.data_ptr(), self._bytes)
        if self._matcher.is_error():
            raise GrammarError("grammar", found=self._matcher.get_error()[:200], action="use a simpler one")
        self._spell_marks(words)

    def _spell_marks(self, words: Tensor) -> None:
        """Where the grammar asks for the text of a mark, the library proposes the mark and then refuses it.

        The text's first byte takes its place: tokenizing all of the text would give the mark again.
        """
        bits = words.numpy().view(np.uint8)
        proposed = [
            mark for mark in self._marks if bits[mark // 8] >> mark % 8 & 1 and mark not in self._ends
        ]
        wrong = [mark for mark in proposed if self._matcher.validate_tokens([mark]) == 0]
        for mark in wrong:
            bits[mark // 8] &= ~(1 << mark % 8) & 0xFF
        if wrong and not bits.any():
            first = self._tokenizer.tokenize_bytes(self._matcher.compute_ff_bytes()[:1])[0]
            bits[first // 8] |= 1 << first % 8

    def accept(self, token: int) -> bool:
        """Take one token; False, with nothing changed, if it may not follow."""
        if self._ended:
            return False
        if token in self._ends:
            if not (self._matcher.is_accepting() or self.finished):
                return False
            self._ended = 1
        elif self._matcher.try_consume_tokens([token]) != 1:
            return False
        else:
            self._taken += 1
        return True

    def rollback(self, count: int) -> None:
        """Take back the last `count` accepted tokens; GrammarError for more than there were."""
        if not 0 <= count <= self._taken + self._ended:
            raise GrammarError("rollback", found=f"{count}", expected=f"0 to {self._taken + self._ended}")
        if count and self._ended:
            self._ended = 0
            count -= 1
        if count:
            self._matcher.rollback(count)
            self._taken -= count

    @property
    def finished(self) -> bool:
        """True when nothing but the end may follow."""
        return bool(self._ended) or (self._matcher.is_stopped() and not self._matcher.is_error())
