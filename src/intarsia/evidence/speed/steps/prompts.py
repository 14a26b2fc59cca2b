"""Prompts of a model on a GPU: time, operations a second, and where the time goes."""

import time
from dataclasses import asdict, dataclass
from typing import Any

import torch

from intarsia.core.config import GPU_PROMPT_ROWS
from intarsia.evidence.machine import synchronize
from intarsia.evidence.speed.steps.breakdown import Share, marked_operations, shares, timeline
from intarsia.evidence.speed.steps.floors import prompt_flops
from intarsia.kernels.rows import Piece
from intarsia.models.glm5_next.model import Glm5NextModel
from intarsia.models.glm5_next.state import DEFAULT_PAGE, State, StateSettings

MULTIPLIER = 7919  # prime, so that tokens follow each other in no order


@dataclass(frozen=True, slots=True)
class PromptResult:
    """A prompt of `tokens` tokens run in pieces of `piece` rows, the last row's hidden read at the end.

    seconds: the best of a few runs; rate: operations a second (see `prompt_flops`); share: of the rate that
    this device holds in BF16 products.
    """

    tokens: int
    piece: int
    seconds: float
    rate: float
    share: float
    finite: bool
    operations: tuple[Share, ...]

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self) | {"tokens_per_second": self.tokens / self.seconds}


def time_prompt(
    model: Glm5NextModel,
    tokens: int,
    *,
    matrix_rate: float,
    piece: int = GPU_PROMPT_ROWS,
    repeats: int = 2,
    broken_down: bool = True,
) -> PromptResult:
    """Run a prompt of made-up tokens on an empty state, warmed up by its own first piece."""
    ids = [at * MULTIPLIER % model.config.vocab_size for at in range(tokens)]
    state = _state(model, tokens)
    _run(model, state, ids[:piece], piece)
    times, finite = [], True
    for _ in range(repeats):
        state.reset(0)
        synchronize(model.device)
        begin = time.perf_counter()
        last = _run(model, state, ids, piece)
        synchronize(model.device)
        times.append(time.perf_counter() - begin)
        finite &= bool(torch.isfinite(last).all())
    rate = prompt_flops(model, tokens) / min(times)
    operations: list[Share] = []
    if broken_down and model.device.type == "cuda":
        state.reset(0)
        with marked_operations() as marks:
            record = timeline(lambda: _run(model, state, ids[: 2 * piece], piece))
        operations = shares(record, marks.log)
    return PromptResult(tokens, piece, min(times), rate, rate / matrix_rate, finite, tuple(operations))


@torch.inference_mode()
def _run(model: Glm5NextModel, state: State, ids: list[int], piece: int) -> torch.Tensor:
    hidden = torch.empty(0)
    for begin in range(0, len(ids), piece):
        rows = state.rows([Piece(0, begin, ids[begin : begin + piece], recurrent=False)])
        hidden = model.hidden(rows, state)
    return hidden[(len(ids) - 1) % piece]


def _state(model: Glm5NextModel, tokens: int) -> State:
    pages = -(-tokens // DEFAULT_PAGE)
    state = model.new_state(StateSettings(streams=1, window=pages * DEFAULT_PAGE, pages=pages))
    state.map_pages(0, range(pages))
    return state
