"""Guesses copied from what followed the same words before, in the prompt or in the reply."""

from array import array

import numpy as np
import numpy.typing as npt

PROMPT_MATCH = 8
REPLY_MATCH = 16
# Odd, so that multiplication modulo 2**64 loses nothing.
_BASE = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def _hash(tokens: "array[int] | list[int]") -> int:
    value = 0
    for token in tokens:
        value = (value * _BASE + token + 1) & _MASK
    return value


class CopyIndex:
    """Where runs of tokens occurred last: runs of 8 in the prompt, of 16 in the reply.

    The prompt's runs are indexed the first time a guess is asked for. Equal hashes count only when the tokens
    are equal too.
    """

    def __init__(self, prompt: "array[int]") -> None:
        self._tokens = prompt[:]
        self._prompt = len(prompt)
        self._hashes: npt.NDArray[np.uint64] | None = None
        self._ends: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._reply: dict[int, int] = {}

    def push(self, token: int) -> None:
        """Take the next token of the reply."""
        end = len(self._tokens)
        if end - self._prompt >= REPLY_MATCH:
            self._reply[_hash(self._tokens[end - REPLY_MATCH :])] = end
        self._tokens.append(token)

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
        last = self._tokens[-REPLY_MATCH:]
        end = self._reply.get(_hash(last), 0)
        return end if end and self._tokens[end - REPLY_MATCH : end] == last else 0

    def _in_prompt(self) -> int:
        """The end of the latest run in the prompt that equals the last tokens and has something after it."""
        if self._prompt <= PROMPT_MATCH:
            return 0
        hashes = self._index()
        last = self._tokens[-PROMPT_MATCH:]
        place = int(np.searchsorted(hashes, np.uint64(_hash(last)), side="right")) - 1
        if place < 0 or int(hashes[place]) != _hash(last):
            return 0
        end = int(self._ends[place])
        # The run of the last tokens themselves is no earlier occurrence, even where the prompt ends in it.
        return end if end < len(self._tokens) and self._tokens[end - PROMPT_MATCH : end] == last else 0

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
