"""The cells of a speed run: a prompt of some length, or some streams that write."""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from intarsia.engine.engine import Engine
from intarsia.engine.events import Event, Tokens
from intarsia.engine.requests import Request
from intarsia.engine.runner import ModelRunner
from intarsia.engine.settings import GRID, StreamSettings
from intarsia.evidence.errors import OverlapError
from intarsia.evidence.machine import synchronize
from intarsia.evidence.speed.settings import SpeedSettings
from intarsia.models.glm5_next.model import Glm5NextModel

PROMPT_OF_DECODE = 2 * GRID
"""Tokens that each stream has read before it writes."""
SLACK = 8
"""Steps a stream, at most, until all streams have begun."""


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
        if length <= window or settings.beyond_window:
            cells.append(Cell("prompt", length))
        else:
            left_out.append(f"prompt of {length:,} tokens: the model's window is {window:,}")
    if any(cell.size > window for cell in cells):
        left_out.append(
            f"replies to prompts beyond the model's window of {window:,}: only the time was taken"
        )
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


def _decode(model: Glm5NextModel, cell: Cell, tokens: Sequence[int], settings: SpeedSettings) -> Timing:
    """From the moment every stream has its first token until each has written `decode_tokens` more.

    Replies are allowed to be longer, so that all streams write in every step that is timed: those that began
    first go on while the others read their prompts, and lucky drafts run ahead.
    """
    ahead = SLACK * cell.size * (1 + cell.drafts)
    most = min(
        ahead + settings.decode_tokens * (1 + cell.drafts),
        model.config.max_position_embeddings - PROMPT_OF_DECODE,
    )
    window = PROMPT_OF_DECODE + most
    page = StreamSettings.page
    engine = Engine(
        model,
        StreamSettings(
            streams=cell.size,
            window=window,
            pool_tokens=cell.size * -(-window // page) * page,  # room for all of them at once
            drafts=cell.drafts,
            copy_drafts=0,
            kept_bytes=0,
        ),
    )
    written = [0] * cell.size
    for stream in range(cell.size):
        _submit(engine, stream, cell, tokens, most, written)
    while not all(written):
        engine.step()
    synchronize(model.device)
    before, first = engine.stats(), list(written)
    begin = time.perf_counter()
    while any(now - then < settings.decode_tokens for now, then in zip(written, first, strict=True)):
        if not engine.step() or max(written) >= most:
            raise OverlapError(
                cell.name,
                found="a stream that ended early",
                expected="all streams writing",
                action="fewer tokens",
            )
    synchronize(model.device)
    seconds, after = time.perf_counter() - begin, engine.stats()
    return Timing(
        seconds,
        sum(written) - sum(first),
        after.cached_tokens,
        after.steps - before.steps,
        sum(after.drafted) - sum(before.drafted),
        sum(after.accepted) - sum(before.accepted),
    )


def _submit(
    engine: Engine, stream: int, cell: Cell, tokens: Sequence[int], most: int, written: list[int]
) -> None:
    """Ask for one reply; what it has written is counted in `written`."""

    def count(event: Event) -> None:
        if isinstance(event, Tokens):
            written[stream] += len(event.ids)

    first = stream * PROMPT_OF_DECODE
    prompt = tuple(tokens[(first + at) % len(tokens)] for at in range(PROMPT_OF_DECODE))
    request = Request(
        f"stream {stream}", prompt, max_tokens=most, ignore_eos=True, draft=cell.drafts > 0, cache=False
    )
    engine.submit(request, count)
