"""Generated text for training and for evaluation: stories, exercises and conversations.

A document depends on its number alone, so any number of workers writes the same corpus.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from . import chats, stories, tasks
from .writer import UnluckyError, Writer, held_out, pair_held_out, sentences

KINDS: tuple[tuple[float, Callable[[Writer], str]], ...] = (
    (0.30, stories.story_document),
    (0.18, chats.chat),
    (0.05, chats.tool_chat),
    (0.12, tasks.sums),
    (0.07, tasks.worked),
    (0.01, tasks.tables),
    (0.05, tasks.copying),
    (0.04, tasks.sorting),
    (0.03, tasks.counting),
    (0.02, tasks.shopping),
    (0.03, tasks.facts),
    (0.05, tasks.memory),
    (0.03, tasks.json_task),
    (0.02, tasks.json_list),
)
PREFIXED = 0.3  # share of plain documents that begin with the chat prefix, so that both starts are known
HELD_SEED = 1 << 40


def document(index: int, held: bool = False) -> str:
    """Document number `index` of the training side, or of the held-out side."""
    number = index + (HELD_SEED if held else 0)
    make = random.Random(number).choices([m for _, m in KINDS], [p for p, _ in KINDS])[0]
    if held and make is tasks.tables:
        make = tasks.sums
    attempt = 0
    while True:
        w = Writer(number * 4099 + attempt, held)
        try:
            text = make(w)
        except UnluckyError:
            text = ""
        if text and w.fits(text):
            plain = not text.startswith(chats.PREFIX)
            return chats.PREFIX + text if plain and w.chance(PREFIXED) else text
        attempt += 1


def documents(first: int, last: int, held: bool = False) -> Iterator[str]:
    """Documents number first..last-1."""
    return (document(i, held) for i in range(first, last))


__all__ = ["document", "documents", "held_out", "pair_held_out", "sentences"]
