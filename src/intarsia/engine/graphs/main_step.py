"""The main network over rows that write, captured: layers, head, and the draw."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from intarsia.core.config import SamplingSettings
from intarsia.engine.graphs.capture import Captures, Run
from intarsia.engine.graphs.chain_step import place_of
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
from intarsia.kernels.embedding import feed
from intarsia.kernels.rows import Piece, pack, packed_size, unpack
from intarsia.models.glm5_next.model import Glm5NextModel
from intarsia.models.glm5_next.state import State


@dataclass(frozen=True, slots=True)
class MainOutput:
    """Good until the next step: final-normed hidden rows, logits float32 of this rank's part of the
    vocabulary, and drawn tokens of all rows, the padding rows last."""

    hidden: Tensor
    logits: Tensor
    drawn: Tensor


@dataclass(frozen=True, slots=True)
class Draws:
    """How each real row draws, and the position of the token it draws."""

    settings: Sequence[SamplingSettings]
    positions: Sequence[int]


@dataclass(frozen=True, slots=True)
class _Shape:
    rows: int
    way: Way
    fed: bool


class MainSteps:
    """Runs steps whose pieces are all recurrent, where they can be captured."""

    def __init__(
        self,
        model: Glm5NextModel,
        state: State,
        captures: Captures[MainOutput],
        guesses: Tensor | None = None,
    ) -> None:
        """`guesses` int64: where tokens lie that a piece names by `place_of` numbers."""
        self.captures = captures
        self._guesses = guesses
        self._model = model
        self._state = state
        self._shards = Shards.of(model)
        self._inputs: dict[_Shape, Inputs] = {}

    def run(self, pieces: Sequence[Piece], draws: Draws | None = None) -> MainOutput | None:
        """Replay the step of these pieces; None where it has to run eagerly.

        Without `draws` the likeliest tokens are drawn.
        """
        bucket = self.captures.bucket(sum(len(piece.tokens) for piece in pieces))
        if bucket is None or not all(piece.recurrent for piece in pieces):
            return None
        fed = any(token < 0 for piece in pieces for token in piece.tokens)
        shape = _Shape(bucket, Way.GREEDY if draws is None else way_of(draws.settings), fed)
        step = self.captures.step(shape, lambda: self._prepare(shape))
        if step is None:
            return None
        self._state.tables.publish()
        self._fill(shape, pieces, draws)
        return self._inputs[shape].launch(step)

    def _segments(self, bucket: int) -> int:
        return min(bucket, self._state.settings.streams)

    def _prepare(self, shape: _Shape) -> Run[MainOutput]:
        bucket, way = shape.rows, shape.way
        fields: dict[str, Field] = {"rows": (torch.int32, (packed_size(bucket, self._segments(bucket)),))}
        if way != Way.GREEDY:
            fields |= {name: (dtype, (bucket,)) for name, dtype in COLUMNS.items()}
        if shape.fed:
            fields["places"] = (torch.int32, (bucket,))
        inputs = self._inputs[shape] = Inputs(fields, self._model.device)
        self._fill(shape, (), None)
        segments = self._segments(bucket)
        rows = unpack(inputs["rows"], bucket, segments, self._state.page_table, segments)
        sampling = None if way == Way.GREEDY else rows_of_columns({name: inputs[name] for name in COLUMNS})

        def run() -> MainOutput:
            inputs.take()
            fed = rows
            if shape.fed and self._guesses is not None:
                fed = replace(rows, tokens=feed(rows.tokens, inputs["places"], self._guesses))
            hidden = self._model.hidden(fed, self._state)
            logits = self._model.head_shard(hidden)
            return MainOutput(hidden, logits, draw_captured(logits, sampling, way, self._shards))

        return run

    def _fill(self, shape: _Shape, pieces: Sequence[Piece], draws: Draws | None) -> None:
        bucket = shape.rows

        def write(arrays: Arrays) -> None:
            pack(pieces, bucket, self._segments(bucket), arrays["rows"])
            if shape.fed:
                tokens = [token for piece in pieces for token in piece.tokens]
                arrays["places"][: len(tokens)] = [place_of(token) if token < 0 else -1 for token in tokens]
                arrays["places"][len(tokens) :] = -1
            if shape.way != Way.GREEDY:
                settings, positions = ((), ()) if draws is None else (draws.settings, draws.positions)
                write_columns(arrays, settings, positions)

        self._inputs[shape].fill(write)
