"""Steps of streams that write: time, floor, launches, guesses, and where the time goes."""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from intarsia.core.config import SamplingSettings
from intarsia.engine.graphs.capture import Captures
from intarsia.engine.graphs.chain_step import ChainSteps, Guessing
from intarsia.engine.graphs.main_step import Draws, MainOutput, MainSteps
from intarsia.engine.graphs.read import read
from intarsia.evidence.machine import synchronize
from intarsia.evidence.speed.steps.breakdown import (
    Share,
    Timeline,
    marked_operations,
    shares,
    timeline,
    watched_routing,
)
from intarsia.evidence.speed.steps.contexts import random_context
from intarsia.evidence.speed.steps.floors import decode_bytes, draft_bytes, network_bytes
from intarsia.kernels.rows import Piece
from intarsia.models.glm5_next.model import Glm5NextModel
from intarsia.models.glm5_next.state import State

WARM_UPS = 3
GREEDY = SamplingSettings(temperature=0.0)


@dataclass(frozen=True, slots=True)
class DraftingCost:
    """What `drafts` guesses cost: a step that verifies them, and the MTP layer's pass that makes them. With
    fewer than `break_even` tokens a step and stream, guessing does not pay."""

    drafts: int
    verify_seconds: float
    chain_seconds: float
    floor_seconds: float
    break_even: float


@dataclass(frozen=True, slots=True)
class DecodeResult:
    """A row of each of `streams` streams a step, `context` tokens behind each. `experts` are those that a
    step met, a routed layer on average: floors count them.

    seconds: of a step, tokens read and the next ones sent (median); device_seconds: from the first kernel's
    begin to the last one's end, and busy_seconds, in which a kernel ran, both while being recorded, which
    takes longer; floor_seconds: bytes over bandwidth; boundary_seconds: kernels times what an empty one
    takes. Bytes: the allocator's highest, and weights and caches as planned.
    """

    streams: int
    context: int
    rows: int
    experts: float
    seconds: float
    device_seconds: float
    busy_seconds: float
    floor_seconds: float
    bytes: int
    kernels: int
    kernels_a_layer: float
    boundary_seconds: float
    eager_because: str
    drafting: DraftingCost | None
    peak_bytes: int
    planned_bytes: int
    operations: tuple[Share, ...]

    @property
    def ratio(self) -> float:
        """The floor's part of a step's time."""
        return self.floor_seconds / self.seconds

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self) | {"ratio": self.ratio, "tokens_per_second": self.streams / self.seconds}


@dataclass(frozen=True, slots=True)
class TimedSteps:
    """Steps that were timed, and not recorded yet: once a process has recorded kernels, its steps take
    longer.
    """

    streams: int
    context: int
    rows: int
    experts: float
    seconds: float
    bytes: int
    eager_because: str
    drafting: DraftingCost | None
    peak_bytes: int
    planned_bytes: int


def time_decode(
    model: Glm5NextModel,
    *,
    streams: int,
    context: int,
    drafts: int = 0,
    steps: int = 30,
    bytes_a_second: float,
    eager: bool = False,
) -> TimedSteps:
    """Time steps over random contexts; the likeliest tokens of random weights are written."""
    if model.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(model.device)
    writer = _writer(model, streams, context, drafts, steps, eager)
    seconds = writer.step_seconds(steps)
    experts = writer.experts_met()
    return TimedSteps(
        streams=streams,
        context=context,
        rows=writer.rows,
        experts=experts,
        seconds=seconds,
        bytes=decode_bytes(model, streams, context, experts=experts),
        eager_because=writer.captures.reason,
        drafting=_drafting(model, writer.state, context, drafts, seconds, bytes_a_second, steps)
        if drafts
        else None,
        peak_bytes=_peak(model),
        planned_bytes=network_bytes(model) + writer.state.nbytes,
    )


def record_decode(
    model: Glm5NextModel,
    timed: TimedSteps,
    *,
    bytes_a_second: float,
    empty_kernel: float,
    eager: bool = False,
    broken_down: bool = True,
) -> DecodeResult:
    """What was timed, with the device's record of one more such step: its kernels, and with `broken_down`
    where its time goes. Time all steps of a process before the first is recorded.
    """
    record, operations = Timeline((), 0.0, 0.0), []
    if model.device.type == "cuda":
        writer = _writer(model, timed.streams, timed.context, 0, 1, eager)
        writer.step()
        record = timeline(writer.step)
        if broken_down:
            operations = _operations(model, writer.state, timed.context, eager)
    kernels = len(record.kernels)
    return DecodeResult(
        streams=timed.streams,
        context=timed.context,
        rows=timed.rows,
        experts=timed.experts,
        seconds=timed.seconds,
        device_seconds=record.span,
        busy_seconds=record.busy,
        floor_seconds=timed.bytes / bytes_a_second,
        bytes=timed.bytes,
        kernels=kernels,
        kernels_a_layer=kernels / model.config.num_hidden_layers,
        boundary_seconds=kernels * empty_kernel,
        eager_because=timed.eager_because,
        drafting=timed.drafting,
        peak_bytes=timed.peak_bytes,
        planned_bytes=timed.planned_bytes,
        operations=tuple(operations),
    )


def _writer(
    model: Glm5NextModel, streams: int, context: int, drafts: int, steps: int, eager: bool
) -> "Writer":
    room = (WARM_UPS + steps + 8) * 2 + drafts
    state = random_context(model, streams=streams, context=context, room=room, step_rows=1 + drafts)
    return Writer(model, state, context, eager)


class Writer:
    """Streams that write one token a step, likeliest first."""

    def __init__(self, model: Glm5NextModel, state: State, context: int, eager: bool, rows: int = 1) -> None:
        self.captures: Captures[MainOutput] = Captures.on(model.device, model.group.host_ranks, eager)
        self._steps = MainSteps(model, state, self.captures)
        self._model, self.state = model, state
        self._position = context
        streams = state.settings.streams
        self._draws = Draws([GREEDY] * (streams * rows), [0] * (streams * rows))
        self._tokens = [
            [(97 * stream + row) % model.config.vocab_size for row in range(rows)]
            for stream in range(streams)
        ]

    @property
    def rows(self) -> int:
        """Rows of a step, padding included."""
        wanted = sum(len(tokens) for tokens in self._tokens)
        return self.captures.bucket(wanted) or wanted

    @torch.inference_mode()
    def step(self) -> Tensor:
        """One step; the hidden rows. Waits for the tokens."""
        pieces = [Piece(stream, self._position, tokens, True) for stream, tokens in enumerate(self._tokens)]
        output = self._steps.run(pieces, self._draws)
        count = len(self._draws.settings)
        if output is None:
            hidden = self._model.hidden(self.state.rows(pieces), self.state)
            drawn = self._model.head(hidden)[:count].argmax(1)
        else:
            hidden, drawn = output.hidden, output.drawn[:count]
        tokens = [max(token, 0) for token in read(drawn)]
        rows = len(self._tokens[0])
        self._tokens = [tokens[first : first + rows] for first in range(0, count, rows)]
        self._position += 1
        return hidden

    @torch.inference_mode()
    def experts_met(self) -> float:
        """Different experts that the next step's rows go to, a routed layer on average; it runs eagerly."""
        pieces = [Piece(stream, self._position, tokens, True) for stream, tokens in enumerate(self._tokens)]
        with watched_routing() as met:
            self._model.hidden(self.state.rows(pieces), self.state)
        return statistics.mean(met) if met else 0.0

    def step_seconds(self, steps: int) -> float:
        """Median of so many steps."""
        return _median(self.step, steps, self._model)


def _drafting(
    model: Glm5NextModel,
    state: State,
    context: int,
    drafts: int,
    plain: float,
    bytes_a_second: float,
    steps: int,
) -> DraftingCost | None:
    """Verifying and guessing, all streams with as many guesses."""
    if model.weights.mtp is None:
        return None
    streams = state.settings.streams
    writer = Writer(model, state, context, False, rows=1 + drafts)
    verify = writer.step_seconds(steps)
    chains: Captures[Tensor] = Captures.on(model.device, model.group.host_ranks)
    chain = ChainSteps(model, state, chains)
    hidden = writer.step()
    pieces = [Piece(stream, context, [7] * (1 + drafts), True) for stream in range(streams)]
    guessing = [
        Guessing(stream, (stream + 1) * (1 + drafts) - 1, context + drafts, drafts, GREEDY)
        for stream in range(streams)
    ]
    rows = [hidden[: streams * (1 + drafts)]]

    @torch.inference_mode()
    def guess() -> object:
        found = chain.run(pieces, rows, guessing)
        return None if found is None else read(found.flatten())

    if guess() is None:
        return None
    chained = _median(guess, steps, model)
    moved = decode_bytes(model, streams, context, 1 + drafts, experts=writer.experts_met())
    moved += drafts * draft_bytes(model, streams)
    return DraftingCost(drafts, verify, chained, moved / bytes_a_second, (verify + chained) / plain)


def _operations(model: Glm5NextModel, state: State, context: int, eager: bool) -> list[Share]:
    """The shares of one more step, whose operations are marked."""
    with marked_operations() as marks:
        writer = Writer(model, state, context, eager)
        writer.step()
        captured = not writer.captures.reason
        if not captured:
            marks.log.clear()
        record = timeline(writer.step)
    # of a captured step the log is that of capturing it: once to warm up, once for the graph
    return shares(record, marks.log[len(marks.log) // 2 :] if captured else marks.log)


def _median(work: Callable[[], object], repeats: int, model: Glm5NextModel) -> float:
    times = []
    for _ in range(WARM_UPS + repeats):
        synchronize(model.device)
        begin = time.perf_counter()
        work()
        synchronize(model.device)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[WARM_UPS:])


def _peak(model: Glm5NextModel) -> int:
    return torch.cuda.max_memory_allocated(model.device) if model.device.type == "cuda" else 0
