"""One pass of the MTP layer captured, with its logits: for a caller that draws by itself."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from intarsia.engine.graphs.capture import Captures, Run
from intarsia.engine.graphs.chain_step import rows_fit
from intarsia.engine.graphs.inputs import Inputs
from intarsia.kernels.indexer import selected_width
from intarsia.kernels.rows import Piece, pack, packed_size, unpack
from intarsia.models.glm5_next.model import Glm5NextModel
from intarsia.models.glm5_next.state import State

NOTHING = -1


@dataclass(frozen=True, slots=True)
class MtpOutput:
    """Good until the next pass: the layer's hidden rows, the positions they attended to, float32 logits of
    this rank's part of the vocabulary."""

    hidden: Tensor
    selected: Tensor
    logits: Tensor


@dataclass(frozen=True, slots=True)
class _Memory:
    inputs: Inputs
    hidden: Tensor
    selected: Tensor


class MtpSteps:
    """Runs the MTP layer over rows of few tokens, where it can be captured."""

    def __init__(self, model: Glm5NextModel, state: State, captures: Captures[MtpOutput]) -> None:
        self.captures = captures
        self._model = model
        self._state = state
        self._memory: dict[tuple[int, bool], _Memory] = {}

    def run(
        self, pieces: Sequence[Piece], hidden: Tensor, selected: Tensor | None = None
    ) -> MtpOutput | None:
        """Show the layer `pieces` with hidden rows [n, D]; None where this has to run eagerly.

        With `selected` [n, S] the rows attend to that, and the indexer does not run.
        """
        count = sum(len(piece.tokens) for piece in pieces)
        bucket = self.captures.bucket(count)
        if bucket is None or not rows_fit(pieces, self._state):
            return None
        shape = bucket, selected is not None
        step = self.captures.step(shape, lambda: self._prepare(shape))
        if step is None:
            return None
        self._state.tables.publish()
        memory = self._memory[shape]
        memory.hidden[:count] = hidden
        if selected is not None:
            memory.selected[:count] = selected
        memory.inputs.fill(lambda arrays: pack(pieces, bucket, self._segments(bucket), arrays["rows"]))
        return memory.inputs.launch(step)

    def _segments(self, bucket: int) -> int:
        return min(bucket, self._state.settings.streams)

    def _prepare(self, shape: tuple[int, bool]) -> Run[MtpOutput]:
        model, (bucket, shares) = self._model, shape
        segments, config = self._segments(bucket), model.config
        width = selected_width(config.index_topk, config.index_kpool)
        memory = self._memory[shape] = _Memory(
            Inputs({"rows": (torch.int32, (packed_size(bucket, segments),))}, model.device),
            torch.zeros(bucket, config.hidden_size, dtype=model.dtype, device=model.device),
            torch.full((bucket, width), NOTHING, dtype=torch.int32, device=model.device),
        )
        memory.inputs.fill(lambda arrays: pack((), bucket, segments, arrays["rows"]))
        rows = unpack(memory.inputs["rows"], bucket, segments, self._state.page_table, segments)

        def run() -> MtpOutput:
            memory.inputs.take()
            given = memory.selected if shares else None
            hidden, selected = model.mtp_hidden(rows, memory.hidden, self._state, given)
            return MtpOutput(hidden, selected, model.head_shard(hidden))

        return run
