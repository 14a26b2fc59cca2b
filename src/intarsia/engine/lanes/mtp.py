"""Guesses of the MTP layer for many lanes at once."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from intarsia.core.rows import pad_rows, padded_count
from intarsia.engine.lanes.costs import MeasuredCosts
from intarsia.engine.lanes.lane import Lane, Unabsorbed
from intarsia.engine.sampling import NOTHING_ALLOWED, draw
from intarsia.kernels.rows import Piece
from intarsia.models.glm5_next.model import Glm5NextModel
from intarsia.models.glm5_next.state import State

MOST_MEASURED = 8
"""Rows a lane in passes that are measured: more are prompts, which cost otherwise."""


@dataclass(slots=True)
class _Chain:
    """A lane that still guesses: the row its next guess comes from."""

    lane: Lane
    wanted: int
    row: int


class MtpGuesses:
    """Shows the MTP layer what the lanes have kept, and lets it guess on.

    Guesses are drawn by the lanes' own keyed rule, so that a sampled reply is guessed as well as a greedy
    one.
    """

    def __init__(self, model: Glm5NextModel, state: State, costs: MeasuredCosts) -> None:
        self._model = model
        self._state = state
        self._costs = costs

    def run(self, wanted: Sequence[tuple[Lane, int]]) -> None:
        """Absorb the lanes' rows, and leave up to `wanted` guesses in each lane's `drafts`.

        All rows up to the lane's `done` are absorbed; the token after the last of them must be known. Pages
        must be mapped up to position `done` + wanted - 1.
        """
        lanes = [(lane, count) for lane, count in wanted if lane.unabsorbed.rows]
        if not lanes:
            return
        begin = time.perf_counter()
        rows = sum(lane.unabsorbed.count for lane, _ in lanes)
        state, selected, last = self._absorb([lane for lane, _ in lanes])
        chains = [
            _Chain(lane, count, row) for (lane, count), row in zip(lanes, last, strict=True) if count > 0
        ]
        chains = self._guess(chains, state)
        if rows <= MOST_MEASURED * len(lanes):
            self._costs.absorbs.record(rows, time.perf_counter() - begin)
        while chains:
            begin, streams = time.perf_counter(), len(chains)
            state, selected = self._extend(chains, state, selected)
            chains = self._guess(chains, state)
            self._costs.chains.record(streams, time.perf_counter() - begin)

    def _absorb(self, lanes: Sequence[Lane]) -> tuple[Tensor, Tensor, list[int]]:
        """The layer's rows, what they attended to, and the number of each lane's last row."""
        pieces, hidden, last, rows = [], [], [], 0
        for lane in lanes:
            first, count = lane.unabsorbed.first, lane.unabsorbed.count
            pieces.append(Piece(lane.slot, first, lane.tokens(first + 1, first + count + 1), False))
            hidden += lane.unabsorbed.rows
            rows += count
            last.append(rows - 1)
            lane.unabsorbed = Unabsorbed(first + count)
        state, selected = self._model.mtp_hidden(
            self._state.rows(pieces), pad_rows(torch.cat(hidden)), self._state
        )
        return state, selected, last

    def _guess(self, chains: list[_Chain], state: Tensor) -> list[_Chain]:
        """Draw each lane's next guess; the lanes that want another, and have not lost their thread."""
        if not chains:
            return []
        rows = state if _in_order(chains) else pad_rows(state[_rows(chains, state)])
        logits = self._model.head(rows)[: len(chains)]
        positions = [chain.lane.length + len(chain.lane.drafts) for chain in chains]
        drawn = draw(
            logits,
            torch.tensor(positions, device=logits.device),
            [chain.lane.sampling for chain in chains],
        )
        going = []
        for chain, token in zip(chains, drawn.tolist(), strict=True):
            if token == NOTHING_ALLOWED:
                continue
            drafts = chain.lane.drafts
            drafts.append(token)
            if len(drafts) < chain.wanted:
                going.append(chain)
        return going

    def _extend(self, chains: list[_Chain], state: Tensor, selected: Tensor) -> tuple[Tensor, Tensor]:
        """One more row a lane, fed by its last guess and by the layer's own hidden of the row before."""
        if not _in_order(chains) or len(state) != padded_count(len(chains)):
            index = _rows(chains, state)
            state, selected = pad_rows(state[index]), pad_rows(selected[index], -1)
        pieces = []
        for row, chain in enumerate(chains):
            lane = chain.lane
            # The first guess, of the token at `length`, follows the pending token's row at `done`.
            position = lane.done + len(lane.drafts) - 1
            pieces.append(Piece(lane.slot, position, lane.drafts[-1:], False))
            chain.row = row
        shared = selected if self._model.config.index_share_for_mtp_iteration else None
        return self._model.mtp_hidden(self._state.rows(pieces), state, self._state, shared)


def _in_order(chains: Sequence[_Chain]) -> bool:
    """True when the chains' rows are the first ones of a step, so that nothing need be gathered."""
    return all(chain.row == row for row, chain in enumerate(chains))


def _rows(chains: Sequence[_Chain], like: Tensor) -> Tensor:
    return torch.tensor([chain.row for chain in chains], device=like.device)
