"""The cells of a speed run: a prompt of some length, or some streams that write."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from intarsia.engine.engine import Engine
from intarsia.engine.events import Event, Finished, Tokens
from intarsia.engine.requests import Request
from intarsia.engine.runner import ModelRunner
from intarsia.engine.settings import GRID, StreamSettings
from intarsia.evidence.machine import synchronize
from intarsia.evidence.speed.settings import SpeedSettings
from intarsia.models.glm5_next.model import Glm5NextModel

PROMPT_OF_DECODE = 2 * GRID
"""Tokens that each stream has read before it writes."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What is timed. `kind` "prompt": `size` tokens are read; "decode": `size` streams write, with up to
    `drafts` guesses a step."""

    kind: str
    size: int
    drafts: int = 0

    @property
    def name(self) -> str:
        """The cell in words."""
        if self.kind == "prompt":
            return f"prompt of {self.size:,} tokens"
        plural = "s" if self.size > 1 else ""
        return f"decode, {self.size} stream{plural}" + (f", {self.drafts} drafts" if self.drafts else "")


@dataclass(frozen=True, slots=True)
class Sample:
    """One timing. `order` counts all samples of a session; `cached_tokens` is what kept states stood for, 0
    where every sample begins with an empty one; `file_cache` says whether weights were in memory already."""

    cell: str
    subject: str
    round: int
    order: int
    warm_up: bool
    seconds: float
    tokens: int
    cached_tokens: int
    file_cache: str
    steps: int = 0
    drafted: int = 0
    accepted: int = 0

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Timing:
    """What one run of a cell gave."""

    seconds: float
    tokens: int
    cached_tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0


def cells_of(settings: SpeedSettings, window: int, can_draft: bool) -> tuple[list[Cell], list[str]]:
    """The cells that a model of this window can run, and in words what is left out."""
    cells, left_out = [], []
    for length in settings.prompts:
        if length > window:
            left_out.append(f"prompt of {length:,} tokens: the model's window is {window:,}")
        else:
            cells.append(Cell("prompt", length))
    for streams in settings.streams:
        cells.append(Cell("decode", streams))
        if settings.drafts and can_draft:
            cells.append(Cell("decode", streams, settings.drafts))
    if settings.drafts and settings.streams and not can_draft:
        left_out.append("drafted cells: the checkpoint has no MTP layer")
    return cells, left_out


def time_cell(model: Glm5NextModel, cell: Cell, tokens: Sequence[int], settings: SpeedSettings) -> Timing:
    """Run a cell once on an empty state. `tokens` is text, long enough; allocation is not timed."""
    if cell.kind == "prompt":
        return _prompt(model, tokens[: cell.size])
    return _decode(model, cell, tokens, settings)


def _prompt(model: Glm5NextModel, tokens: Sequence[int]) -> Timing:
    runner = ModelRunner(model, window=len(tokens), max_drafts=0)
    synchronize(model.device)
    begin = time.perf_counter()
    runner.start(tokens)
    synchronize(model.device)
    return Timing(time.perf_counter() - begin, len(tokens))


class _Reply:
    """Counts what a stream wrote."""

    def __init__(self) -> None:
        self.tokens = 0
        self.finished: Finished | None = None

    def __call__(self, event: Event) -> None:
        if isinstance(event, Tokens):
            self.tokens += len(event.ids)
        elif isinstance(event, Finished):
            self.finished = event


def _decode(model: Glm5NextModel, cell: Cell, tokens: Sequence[int], settings: SpeedSettings) -> Timing:
    """From the moment every stream has its first token until all have written theirs."""
    engine = Engine(
        model,
        StreamSettings(
            streams=cell.size,
            window=PROMPT_OF_DECODE + settings.decode_tokens,
            drafts=cell.drafts,
            copy_drafts=0,
            kept_bytes=0,
        ),
    )
    replies = []
    for stream in range(cell.size):
        first = stream * PROMPT_OF_DECODE
        prompt = tuple(tokens[(first + at) % len(tokens)] for at in range(PROMPT_OF_DECODE))
        replies.append(_Reply())
        engine.submit(
            Request(
                f"stream {stream}",
                prompt,
                max_tokens=settings.decode_tokens,
                ignore_eos=True,
                draft=cell.drafts > 0,
                cache=False,
            ),
            replies[-1],
        )
    while not all(reply.tokens for reply in replies):
        engine.step()
    synchronize(model.device)
    before, steps = sum(reply.tokens for reply in replies), engine.stats().steps
    begin = time.perf_counter()
    while not all(reply.finished for reply in replies):
        engine.step()
    synchronize(model.device)
    seconds = time.perf_counter() - begin
    usages = [reply.finished.usage for reply in replies if reply.finished is not None]
    return Timing(
        seconds,
        sum(reply.tokens for reply in replies) - before,
        sum(usage.cached_tokens for usage in usages),
        engine.stats().steps - steps,
        sum(sum(usage.drafted) for usage in usages),
        sum(sum(usage.accepted) for usage in usages),
    )
