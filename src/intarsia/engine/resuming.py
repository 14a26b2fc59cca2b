"""One stream for a conversation: a prompt that goes on from the last one runs only what is new."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from intarsia.engine.kept.snapshot import Snapshot, restore, take
from intarsia.engine.runner import STREAM, ModelRunner
from intarsia.engine.settings import GRID

# The last turn is rendered otherwise once it is history (its thoughts go, a mark to begin the reply goes), so
# the very end of a prompt may not come again; 64 tokens before it do.
PLACES = 2
MOST_KEPT = 4


@dataclass(frozen=True, slots=True)
class _Kept:
    """The stream's fixed state after `tokens`; their rows are in the stream's own pages."""

    tokens: list[int]
    snapshot: Snapshot


class ResumingRunner(ModelRunner):
    """Keeps its state at the last places of the 64-token grid in a prompt, and begins the next prompt there.

    A resumed prompt has the bits of a fresh one. Costs a copy of the stream's fixed state a place.
    """

    _kept: tuple[_Kept, ...] = ()
    _reused = 0

    @property
    def reused(self) -> int:
        """Tokens of the last prompt that did not have to run again."""
        return self._reused

    def start(self, tokens: Sequence[int]) -> Tensor:
        """Run a prompt, from where it parts from the last one; logits float32 [V] of its last row."""
        self.check_prompt(tokens)
        tokens = list(tokens)
        self._kept = tuple(kept for kept in self._kept if _continues(tokens, kept))
        begin = len(self._kept[-1].tokens) if self._kept else 0
        self.empty(begin)
        if self._kept:
            snapshot = self._kept[-1].snapshot
            restore(self.state, STREAM, snapshot)
            if snapshot.hidden is not None:
                # The MTP layer's row before is another one with another token behind it.
                self.absorb([tokens[begin]], begin - 1, snapshot.hidden.unsqueeze(0))
        self._reused = begin
        last = (len(tokens) - 1) // GRID * GRID
        for place in range(last - GRID * (PLACES - 1), last + 1, GRID):
            if place > begin:
                hidden = self.run_prompt(tokens, begin, place)
                snapshot = take(self.state, STREAM, hidden if self.can_draft else None)
                self._kept = (*self._kept, _Kept(tokens[:place], snapshot))[-MOST_KEPT:]
                begin = place
        return self.logits_of(self.run_prompt(tokens, begin, len(tokens)))


def _continues(tokens: list[int], kept: _Kept) -> bool:
    return len(kept.tokens) < len(tokens) and tokens[: len(kept.tokens)] == kept.tokens
