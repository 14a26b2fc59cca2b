"""The main network over rows that write, captured: layers, head, and the draw."""

from collections.abc import Sequence
from dataclasses import dataclass

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


class MainSteps:
    """Runs steps whose pieces are all recurrent, where they can be captured."""

    def __init__(self, model: Glm5NextModel, state: State, captures: Captures[MainOutput]) -> None:
        self.captures = captures
        self._model = model
        self._state = state
        self._shards = Shards.of(model)
        self._inputs: dict[tuple[int, Way], Inputs] = {}

    def run(self, pieces: Sequence[Piece], draws: Draws | None = None) -> MainOutput | None:
        """Replay the step of these pieces; None where it has to run eagerly.

        Without `draws` the likeliest tokens are drawn.
        """
        bucket = self.captures.bucket(sum(len(piece.tokens) for piece in pieces))
        if bucket is None or not all(piece.recurrent for piece in pieces):
            return None
        way = Way.GREEDY if draws is None else way_of(draws.settings)
        shape = bucket, way
        step = self.captures.step(shape, lambda: self._prepare(bucket, way))
        if step is None:
            return None
        self._state.tables.publish()
        self._fill(shape, pieces, draws)
        return step()

    def _segments(self, bucket: int) -> int:
        return min(bucket, self._state.settings.streams)

    def _prepare(self, bucket: int, way: Way) -> Run[MainOutput]:
        fields: dict[str, Field] = {"rows": (torch.int32, (packed_size(bucket, self._segments(bucket)),))}
        if way != Way.GREEDY:
            fields |= {name: (dtype, (bucket,)) for name, dtype in COLUMNS.items()}
        inputs = self._inputs[bucket, way] = Inputs(fields, self._model.device)
        self._fill((bucket, way), (), None)
        segments = self._segments(bucket)
        rows = unpack(inputs["rows"], bucket, segments, self._state.page_table, segments)
        sampling = None if way == Way.GREEDY else rows_of_columns({name: inputs[name] for name in COLUMNS})

        def run() -> MainOutput:
            hidden = self._model.hidden(rows, self._state)
            logits = self._model.head_shard(hidden)
            return MainOutput(hidden, logits, draw_captured(logits, sampling, way, self._shards))

        return run

    def _fill(self, shape: tuple[int, Way], pieces: Sequence[Piece], draws: Draws | None) -> None:
        bucket, way = shape

        def write(arrays: Arrays) -> None:
            pack(pieces, bucket, self._segments(bucket), arrays["rows"])
            if way != Way.GREEDY:
                settings, positions = ((), ()) if draws is None else (draws.settings, draws.positions)
                write_columns(arrays, settings, positions)

        self._inputs[shape].fill(write)
