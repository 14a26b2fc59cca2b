"""Guesses of the MTP layer for many lanes at once."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from intarsia.core.rows import pad_rows, padded_count
from intarsia.engine.graphs.capture import Captures
from intarsia.engine.graphs.chain_step import ChainSteps, Guessing, unknown
from intarsia.engine.graphs.read import Reading
from intarsia.engine.lanes.adjust import masked
from intarsia.engine.lanes.costs import MeasuredCosts
from intarsia.engine.lanes.lane import Lane, Stretch, Unabsorbed
from intarsia.engine.sampling import NOTHING_ALLOWED
from intarsia.engine.sampling.shards import WHOLE, Shards, draw_shards
from intarsia.kernels.rows import Piece
from intarsia.models.glm5_next.model import Glm5NextModel
from intarsia.models.glm5_next.state import State

MOST_MEASURED = 8
"""Rows a lane in passes that are measured: more are prompts, which cost otherwise."""


@dataclass(slots=True)
class _Promise:
    """Guesses that are being made: lanes with the lists in which they will stand, and where each lane's
    begin."""

    reading: Reading
    begin: float
    rows: int
    deepest: int
    lanes: list[tuple[Lane, list[int], int]]


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

    def __init__(
        self, model: Glm5NextModel, state: State, costs: MeasuredCosts, captures: Captures[Tensor]
    ) -> None:
        self._model = model
        self._state = state
        self._costs = costs
        self._captured = ChainSteps(model, state, captures)
        self._promise: _Promise | None = None
        self._shards = Shards.of(model)

    @property
    def guesses(self) -> Tensor:
        """Where captured guesses lie on the device."""
        return self._captured.guesses

    def settle(self) -> bool:
        """Put what was guessed in the place of the numbers that stand for it; False if nothing was open.

        What no token could be guessed for stays below zero. Waits for the guesses, and for nothing launched
        after them.
        """
        promise, self._promise = self._promise, None
        if promise is None:
            return False
        drawn = promise.reading.get()
        # The graph is one; its passes are taken to cost alike.
        each = (time.perf_counter() - promise.begin) / promise.deepest
        self._costs.absorbs.record(promise.rows, each)
        if promise.deepest > 1:
            self._costs.chains.record(len(promise.lanes), each)
        for lane, drafts, first in promise.lanes:
            if lane.drafts is drafts:
                drafts[:] = drawn[first : first + len(drafts)]
        return True

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
        if self._captured.captures.possible and any(count for _, count in lanes) and self._replay(lanes):
            return
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

    def _replay(self, lanes: Sequence[tuple[Lane, int]]) -> bool:
        """Absorb and guess in one captured step; False where it has to run eagerly.

        The guesses are left open, see `settle`.
        """
        begin, rows = time.perf_counter(), sum(lane.unabsorbed.count for lane, _ in lanes)
        self._absorb_early([lane for lane, _ in lanes])
        pieces, hidden = _unabsorbed([lane for lane, _ in lanes])
        last = np.cumsum([len(piece.tokens) for piece in pieces]) - 1
        order = sorted(
            (index for index, (_, count) in enumerate(lanes) if count > 0),
            key=lambda index: -lanes[index][1],
        )
        guessing = [
            Guessing(lane.slot, int(last[index]), lane.done - 1, count, lane.sampling)
            for index in order
            for lane, count in [lanes[index]]
        ]
        recurrent = [piece._replace(recurrent=True) for piece in pieces]
        guesses = self._captured.run(recurrent, [one.step[one.begin : one.end] for one in hidden], guessing)
        if guesses is None:
            return False
        for (lane, _), piece in zip(lanes, pieces, strict=True):
            lane.unabsorbed = Unabsorbed(piece.position + len(piece.tokens))
        depth, promised = guessing[0].wanted, []
        for row, index in enumerate(order):
            lane, count = lanes[index]
            lane.drafts = [unknown(row * depth + place) for place in range(count)]
            promised.append((lane, lane.drafts, row * depth))
        self._promise = _Promise(Reading(guesses.flatten()), begin, rows, depth, promised)
        return True

    def _absorb_early(self, lanes: Sequence[Lane]) -> None:
        """Show the layer, as rows of a prompt, what is beyond a stream's most rows of a written step."""
        most = self._state.settings.step_rows
        long = [lane for lane in lanes if lane.unabsorbed.count > most]
        if not long:
            return
        pieces, hidden = [], []
        for lane in long:
            first = lane.unabsorbed.first
            early, lane.unabsorbed = lane.unabsorbed.split(lane.unabsorbed.count - most)
            end = lane.unabsorbed.first
            pieces.append(Piece(lane.slot, first, lane.tokens(first + 1, end + 1), False))
            hidden += early
        self._model.mtp_hidden(self._state.rows(pieces), _gathered(hidden), self._state)

    def _absorb(self, lanes: Sequence[Lane]) -> tuple[Tensor, Tensor, list[int]]:
        """The layer's rows, what they attended to, and the number of each lane's last row."""
        pieces, hidden = _unabsorbed(lanes)
        last = [end - 1 for end in accumulate(len(piece.tokens) for piece in pieces)]
        for lane, piece in zip(lanes, pieces, strict=True):
            lane.unabsorbed = Unabsorbed(piece.position + len(piece.tokens))
        state, selected = self._model.mtp_hidden(self._state.rows(pieces), _gathered(hidden), self._state)
        return state, selected, last

    def _guess(self, chains: list[_Chain], state: Tensor) -> list[_Chain]:
        """Draw each lane's next guess; the lanes that want another, and have not lost their thread."""
        if not chains:
            return []
        rows = state if _in_order(chains) else state[_index([chain.row for chain in chains], state)]
        logits, shards = self._model.head_shard(rows)[: len(chains)], self._shards
        if any(chain.lane.request.grammar is not None for chain in chains):
            logits, shards = shards.whole(logits), WHOLE
            _mask(logits, chains)
        positions = [chain.lane.length + len(chain.lane.drafts) for chain in chains]
        drawn = draw_shards(logits, positions, [chain.lane.sampling for chain in chains], shards)
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
            index = _index([chain.row for chain in chains], state)
            state, selected = state[index], selected[index]
        pieces = []
        for row, chain in enumerate(chains):
            lane = chain.lane
            # The first guess, of the token at `length`, follows the pending token's row at `done`.
            position = lane.done + len(lane.drafts) - 1
            pieces.append(Piece(lane.slot, position, lane.drafts[-1:], False))
            chain.row = row
        shared = selected if self._model.config.index_share_for_mtp_iteration else None
        return self._model.mtp_hidden(self._state.rows(pieces), state, self._state, shared)


def _mask(logits: Tensor, chains: Sequence[_Chain]) -> None:
    """Leave to a lane with a grammar what may follow its guesses so far: another guess would only be cut."""
    for row, chain in enumerate(chains):
        lane = chain.lane
        if lane.request.grammar is not None:
            allowed = lane.reply.allowed_after(lane.drafts, -(-logits.shape[1] // 32))
            if allowed is not None:
                logits[row] = masked(logits[row : row + 1], allowed.unsqueeze(0))[0]


def _gathered(rows: Sequence[Stretch]) -> Tensor:
    """The rows one after another, padded. Mostly they are all of one step, and one look-up fetches them."""
    step = rows[0].step
    if any(one.step is not step for one in rows):
        return pad_rows(torch.cat([one.step[one.begin : one.end] for one in rows]))
    places = [place for one in rows for place in range(one.begin, one.end)]
    if len(step) == padded_count(len(places)) and places == list(range(len(places))):
        return step
    return step[_index(places, step)]


def _unabsorbed(lanes: Sequence[Lane]) -> tuple[list[Piece], list[Stretch]]:
    """The rows that the layer has not seen, and the main network's hidden rows for them."""
    pieces, hidden = [], []
    for lane in lanes:
        first, count = lane.unabsorbed.first, lane.unabsorbed.count
        pieces.append(Piece(lane.slot, first, lane.tokens(first + 1, first + count + 1), False))
        hidden += lane.unabsorbed.rows
    return pieces, hidden


def _in_order(chains: Sequence[_Chain]) -> bool:
    """True when the chains' rows are the first ones of a step, so that nothing need be gathered."""
    return all(chain.row == row for row, chain in enumerate(chains))


def _index(places: list[int], like: Tensor) -> Tensor:
    """`places` for a look-up in `like` that gives padded rows; padding is never read, so any row will do."""
    padded = places + places[:1] * (padded_count(len(places)) - len(places))
    index = torch.from_numpy(np.array(padded, dtype=np.int64))
    return index.pin_memory().to(like.device, non_blocking=True) if like.is_cuda else index
