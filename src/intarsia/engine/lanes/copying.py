"""Guesses copied from what followed the same words before, in the prompt or in the reply."""

from array import array

import numpy as np
import numpy.typing as npt

PROMPT_MATCH = 8
REPLY_MATCH = 16
# Odd, so that multiplication modulo 2**64 loses nothing.
_BASE = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


class _Rolling:
    """The hash of the last `width` tokens: the sum of (token + 1) * base**age, modulo 2**64."""

    def __init__(self, width: int) -> None:
        self.value = 0
        self._taken = 0
        self._width = width
        self._oldest = pow(_BASE, width, 1 << 64)

    def push(self, tokens: "array[int]") -> None:
        """The last of `tokens` is new."""
        value = self.value * _BASE + tokens[-1] + 1
        self._taken += 1
        if self._taken > self._width:
            value -= (tokens[-1 - self._width] + 1) * self._oldest
        self.value = value & _MASK


class CopyIndex:
    """Where runs of tokens occurred last: runs of 8 in the prompt, of 16 in the reply.

    The prompt's runs are indexed the first time a guess is asked for. Equal hashes count only when the tokens
    are equal too.
    """

    def __init__(self, prompt: "array[int]") -> None:
        self._prompt = len(prompt)
        self._hashes: npt.NDArray[np.uint64] | None = None
        self._ends: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._reply: dict[int, int] = {}
        self._last, self._last_of_reply = _Rolling(PROMPT_MATCH), _Rolling(REPLY_MATCH)
        beginning = max(0, self._prompt - REPLY_MATCH)
        self._tokens = prompt[:beginning]
        for token in prompt[beginning:]:
            self._append(token)

    def push(self, token: int) -> None:
        """Take the next token of the reply."""
        end = len(self._tokens)
        if end - self._prompt >= REPLY_MATCH:
            self._reply[self._last_of_reply.value] = end
        self._append(token)

    def _append(self, token: int) -> None:
        self._tokens.append(token)
        self._last.push(self._tokens)
        self._last_of_reply.push(self._tokens)

    def propose(self, most: int) -> list[int]:
        """`most` tokens that followed the latest earlier occurrence of the last ones; none if there is none.

        Where the occurrence is too near, what followed it is taken to go on repeating.
        """
        if most < 1:
            return []
        for begin in (self._in_reply(), self._in_prompt()):
            if begin:
                period = len(self._tokens) - begin
                return [self._tokens[begin + place % period] for place in range(most)]
        return []

    def _in_reply(self) -> int:
        if len(self._tokens) - self._prompt < REPLY_MATCH:
            return 0
        end = self._reply.get(self._last_of_reply.value, 0)
        return end if end and self._same(end, REPLY_MATCH) else 0

    def _in_prompt(self) -> int:
        """The end of the latest run in the prompt that equals the last tokens and has something after it."""
        if self._prompt <= PROMPT_MATCH:
            return 0
        hashes, last = self._index(), self._last.value
        place = int(hashes.searchsorted(np.uint64(last), side="right")) - 1
        if place < 0 or int(hashes[place]) != last:
            return 0
        end = int(self._ends[place])
        # The run of the last tokens themselves is no earlier occurrence, even where the prompt ends in it.
        return end if end < len(self._tokens) and self._same(end, PROMPT_MATCH) else 0

    def _same(self, end: int, width: int) -> bool:
        return self._tokens[end - width : end] == self._tokens[-width:]

    def _index(self) -> npt.NDArray[np.uint64]:
        if self._hashes is None:
            prompt = np.frombuffer(self._tokens[: self._prompt], np.int64).astype(np.uint64)
            runs = self._prompt - PROMPT_MATCH
            value = np.zeros(runs, np.uint64)
            for offset in range(PROMPT_MATCH):
                value = value * np.uint64(_BASE) + prompt[offset : offset + runs] + np.uint64(1)
            ends = np.arange(PROMPT_MATCH, self._prompt)
            order = np.lexsort((ends, value))
            self._hashes, self._ends = value[order], ends[order]
        return self._hashes
