"""The MTP layer captured: it absorbs the rows that were kept, and guesses on, draws inside."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from intarsia.core.config import SamplingSettings
from intarsia.engine.graphs.capture import Captures, Run
from intarsia.engine.graphs.inputs import Arrays, Field, Inputs
from intarsia.engine.sampling.captured import (
    COLUMNS,
    Way,
    draw_captured,
    rows_of_columns,
    way_of,
    write_columns,
)
from intarsia.engine.sampling.shards import Shards
from intarsia.kernels.rows import NO_STREAM, Piece, Rows, pack, packed_size, unpack
from intarsia.models.glm5_next.model import Glm5NextModel
from intarsia.models.glm5_next.state import State


@dataclass(frozen=True, slots=True)
class Guessing:
    """A stream that guesses: `wanted` tokens, the first of them after absorbed row `row`.

    `position` is the sequence position of that row, and `sampling` says how the guesses, of the tokens at
    `position` + 2 and on, are drawn.
    """

    stream: int
    row: int
    position: int
    wanted: int
    sampling: SamplingSettings


def unknown(place: int) -> int:
    """What stands for the guess at a place of `ChainSteps.guesses` until the host knows it; below -1."""
    return -2 - place


def place_of(token: int) -> int:
    """The place that `unknown` stands for."""
    return -2 - token


@dataclass(frozen=True, slots=True)
class _Shape:
    rows: int
    chains: int
    depth: int
    way: Way


class ChainSteps:
    """Runs the MTP layer over rows that were kept, where it can be captured."""

    def __init__(self, model: Glm5NextModel, state: State, captures: Captures[Tensor]) -> None:
        self.captures = captures
        self._model = model
        self._state = state
        self._shards = Shards.of(model)
        self._inputs: dict[_Shape, tuple[Inputs, Tensor]] = {}
        streams = captures.bucket(state.settings.streams) or state.settings.streams
        self.guesses = torch.zeros(streams * state.settings.step_rows, dtype=torch.int64, device=model.device)
        """All guesses of the last call, chain by chain: a later captured step may read them here."""

    def run(
        self, pieces: Sequence[Piece], hidden: Sequence[Tensor], guessing: Sequence[Guessing]
    ) -> Tensor | None:
        """Absorb `pieces`, whose main hidden rows are `hidden` in their order, and guess.

        Returns int64 [chains, depth], at the beginning of `guesses`: a row for each of `guessing`, in its
        order, good until the next call; those beyond a stream's `wanted` mean nothing. `guessing` has the
        greediest first: `wanted` never rises. None where this has to run eagerly.
        """
        rows, chains = self.captures.bucket(_count(pieces)), self.captures.bucket(len(guessing))
        if rows is None or chains is None or not rows_fit(pieces, self._state):
            return None
        shape = _Shape(
            rows,
            chains if guessing else 0,
            guessing[0].wanted if guessing else 0,
            way_of([one.sampling for one in guessing]),
        )
        step = self.captures.step(shape, lambda: self._prepare(shape))
        if step is None:
            return None
        self._state.tables.publish()
        inputs, absorbed = self._inputs[shape]
        torch.cat(list(hidden), out=absorbed[: _count(pieces)])
        inputs.fill(lambda arrays: self._write(arrays, shape, pieces, guessing))
        return inputs.launch(step)

    def _segments(self, rows: int) -> int:
        return min(rows, self._state.settings.streams)

    def _prepare(self, shape: _Shape) -> Run[Tensor]:
        model = self._model
        fields: dict[str, Field] = {
            "rows": (torch.int32, (packed_size(shape.rows, self._segments(shape.rows)),)),
            "last": (torch.int64, (shape.chains,)),
            "positions_after": (torch.int32, (shape.depth, shape.chains)),
            "streams": (torch.int32, (shape.depth, shape.chains)),
            "starts": (torch.int32, (shape.depth, shape.chains + 1)),
        }
        if shape.way != Way.GREEDY:
            fields |= {name: (dtype, (shape.chains,)) for name, dtype in COLUMNS.items()}
        inputs = Inputs(fields, model.device)
        absorbed = torch.zeros(shape.rows, model.config.hidden_size, dtype=model.dtype, device=model.device)
        self._inputs[shape] = inputs, absorbed
        inputs.fill(lambda arrays: self._write(arrays, shape, (), ()))
        return lambda: self._run(inputs, absorbed, shape)

    def _run(self, inputs: Inputs, absorbed: Tensor, shape: _Shape) -> Tensor:
        inputs.take()
        model, state = self._model, self._state
        segments = self._segments(shape.rows)
        rows = unpack(inputs["rows"], shape.rows, segments, state.page_table, segments)
        hidden, selected = model.mtp_hidden(rows, absorbed, state)
        if not shape.depth:
            return hidden.new_empty(0, dtype=torch.int64)
        hidden, selected = hidden[inputs["last"]], selected[inputs["last"]]
        shared = model.config.index_share_for_mtp_iteration
        sampling = None
        if shape.way != Way.GREEDY:
            sampling = rows_of_columns({name: inputs[name] for name in COLUMNS})
        guesses: list[Tensor] = []
        for depth in range(shape.depth):
            if depth:
                # the row of the guess before, with the layer's own hidden of the row before that
                rows = Rows(
                    tokens=guesses[-1].clamp(min=0),
                    positions=inputs["positions_after"][depth],
                    streams=inputs["streams"][depth],
                    starts=inputs["starts"][depth],
                    page_table=state.page_table,
                    recurrent_segments=shape.chains,
                )
                hidden, selected = model.mtp_hidden(rows, hidden, state, selected if shared else None)
                if sampling is not None:
                    sampling.positions.add_(1)
            guesses.append(draw_captured(model.head_shard(hidden), sampling, shape.way, self._shards))
        out = self.guesses[: shape.chains * shape.depth].view(shape.chains, shape.depth)
        return torch.stack(guesses, 1, out=out)

    def _write(
        self, arrays: Arrays, shape: _Shape, pieces: Sequence[Piece], guessing: Sequence[Guessing]
    ) -> None:
        pack(pieces, shape.rows, self._segments(shape.rows), arrays["rows"])
        count = len(guessing)
        arrays["last"][:count] = [one.row for one in guessing]
        arrays["last"][count:] = 0
        for depth in range(shape.depth):
            going = sum(one.wanted > depth for one in guessing)
            arrays["positions_after"][depth] = 0
            arrays["positions_after"][depth, :going] = [one.position + depth for one in guessing[:going]]
            arrays["streams"][depth] = NO_STREAM
            arrays["streams"][depth, :going] = [one.stream for one in guessing[:going]]
            arrays["starts"][depth] = np.minimum(np.arange(shape.chains + 1), going)
        if shape.way != Way.GREEDY:
            write_columns(arrays, [one.sampling for one in guessing], [one.position + 2 for one in guessing])


def rows_fit(pieces: Sequence[Piece], state: State) -> bool:
    """Whether no stream has more rows than a step of written rows may have: rings hold no more, and kernels
    count on it."""
    return all(len(piece.tokens) <= state.settings.step_rows for piece in pieces)


def _count(pieces: Sequence[Piece]) -> int:
    return sum(len(piece.tokens) for piece in pieces)
