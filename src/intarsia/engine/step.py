"""One step of the network over the rows of many lanes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from intarsia.core.config import SamplingSettings
from intarsia.core.rows import pad_rows, padded_count
from intarsia.engine.graphs.capture import Captures
from intarsia.engine.graphs.main_step import Draws, MainOutput, MainSteps
from intarsia.engine.lanes.lane import Lane
from intarsia.kernels.rows import Piece
from intarsia.models.glm5_next.model import Glm5NextModel
from intarsia.models.glm5_next.state import State

HEAD_ROWS = 128
"""Rows of a prompt whose logits exist at once; a multiple of 16."""


@dataclass(slots=True)
class Part:
    """What a step runs of one lane.

    Recurrent parts are a token to verify and the guesses behind it, or tokens that run again; the others are
    pieces of a prompt, which end on the grid or with the prompt.
    """

    lane: Lane
    position: int
    tokens: list[int]
    recurrent: bool
    logits: int = 0
    """How many of the last rows say what follows."""
    slot: int = -1
    """The lane's stream in the caches, when the step was laid out."""
    rows: slice = field(default_factory=lambda: slice(0, 0))
    """Where they are in the step; set when it is laid out."""

    @property
    def end(self) -> int:
        """The position after the last row."""
        return self.position + len(self.tokens)

    @property
    def verifies(self) -> bool:
        """True for a token to verify and guesses, of which only some may be kept."""
        return self.recurrent and self.logits > 0


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step gives, good until the next one."""

    hidden: Tensor
    """Final-normed hidden rows [R, D]."""
    logits: Tensor | None
    """float32 [n, part] of the parts' last `logits` rows, in the order of the parts; None where there are
    none. Of several ranks each has its part of the vocabulary."""
    drawn: Tensor | None
    """int64 [n], what the lanes' settings draw from those, adjustments and masks apart; None: not drawn."""


class StepRunner:
    """Runs parts of lanes through a network, one call a step, and keeps the caches' bookkeeping."""

    def __init__(
        self,
        model: Glm5NextModel,
        state: State,
        captures: Captures[MainOutput],
        guesses: Tensor | None = None,
    ) -> None:
        """`guesses` as for MainSteps."""
        self.model = model
        self.state = state
        self._captured = MainSteps(model, state, captures, guesses)

    def run(self, parts: Sequence[Part], settle: Callable[[], object] = lambda: None) -> StepOutput:
        """Lay out the parts' rows, recurrent ones first, and run them.

        A captured step finds tokens that the host does not know on the device; for another `settle` is called
        first, which puts them in.
        """
        first = 0
        for part in sorted(parts, key=lambda part: not part.recurrent):
            part.slot = part.lane.slot
            part.rows = slice(first, first + len(part.tokens))
            first = part.rows.stop
        pieces = [Piece(part.slot, part.position, part.tokens, part.recurrent) for part in parts]
        speaking = [part for part in parts if part.logits]
        whole = all(part.logits == len(part.tokens) for part in parts)
        output = draws = None
        if self._captured.captures.possible:
            draws = _draws(parts) if whole else None
            output = self._captured.run(pieces, draws)
        if output is None:
            if any(token < 0 for part in parts for token in part.tokens):
                settle()
                return self.run(parts)
            hidden = self.model.hidden(self.state.rows(pieces), self.state)
            return StepOutput(hidden, self.logits(hidden, speaking) if speaking else None, None)
        if whole:
            drawn = None if draws is None else output.drawn[:first]
            return StepOutput(output.hidden, output.logits[:first], drawn)
        if not speaking:
            return StepOutput(output.hidden, None, None)
        index = torch.tensor(_wanted(speaking), device=output.logits.device)
        return StepOutput(output.hidden, output.logits[index], None)

    def commit(self, parts: Sequence[Part], kept: Sequence[int]) -> None:
        """Keep the first rows of each part, as many as `kept` says; of a prompt piece, all."""
        for part, rows in zip(parts, kept, strict=True):
            self.state.commit(part.slot, max(rows, 1) if part.recurrent else 1)

    def logits(self, hidden: Tensor, parts: Sequence[Part]) -> Tensor:
        """This rank's logits float32 [n, part] of the parts' last `logits` rows, in the parts' order."""
        wanted = _wanted(parts)
        count = len(wanted)
        # Mostly these are the first rows, and nothing need be gathered.
        if wanted[-1] == count - 1 and padded_count(count) == len(hidden):
            return self.model.head_shard(hidden)[:count]
        index = torch.tensor(wanted, device=hidden.device)
        return self.model.head_shard(pad_rows(hidden[index]))[:count]

    def prompt_logits(self, hidden: Tensor, part: Part) -> "list[Tensor]":
        """Whole rows of logits of a prompt piece, in blocks of rows."""
        rows = hidden[part.rows]
        blocks = range(0, len(rows), HEAD_ROWS)
        return [
            self.model.head(pad_rows(block), len(block))
            for block in (rows[begin : begin + HEAD_ROWS] for begin in blocks)
        ]


def _wanted(parts: Sequence[Part]) -> list[int]:
    """The rows that say what follows."""
    return [row for part in parts for row in range(part.rows.stop - part.logits, part.rows.stop)]


def _draws(parts: Sequence[Part]) -> Draws | None:
    """How every row draws, row j of a part standing after the first j guesses; None where lanes change their
    logits first."""
    if any(part.lane.adjustment is not None or part.lane.masks is not None for part in parts):
        return None
    settings: list[SamplingSettings] = []
    positions: list[int] = []
    for part in parts:
        settings += [part.lane.sampling] * len(part.tokens)
        positions += range(part.lane.length, part.lane.length + len(part.tokens))
    return Draws(settings, positions)
