"""The settings of serving several streams. Importing this stays cheap: it knows neither torch nor a model."""

from dataclasses import dataclass, replace

from intarsia.core.config import CPU_PROMPT_ROWS, GPU_PROMPT_ROWS, EngineSettings, check_integer
from intarsia.core.errors import UsageError

GRID = 64
"""Prompts run in chunks on absolute multiples of this; states are kept there. A property of the network's
form."""


@dataclass(frozen=True)
class StreamSettings(EngineSettings):
    """How many streams run at once, what memory they share, and how they take turns."""

    streams: int = 8
    """Sequences that run at once."""
    page: int = 512
    """Tokens of a cache page."""
    pool_tokens: int | None = None
    """Tokens that all streams and kept states may hold together; by default what the streams could use at
    most, but no more than 131,072 unless one window needs them."""
    state_bytes: int | None = None
    """Bytes for the pool and the fixed state of all streams, instead of `pool_tokens`."""
    prompt_rows: int | None = None
    """Most prompt rows of a step while nothing is being written; by default 1,024 on a CPU, 8,192 on a
    GPU."""
    chunk: int = 256
    """Most prompt rows of a step beside streams that write: how long these may wait for a prompt."""
    queue: int = 256
    """Most requests that wait; more are refused for the time being."""
    reply_share: int = 32768
    """Tokens of a reply that are reserved when a request starts; longer replies grow into what is free."""
    kept_bytes: int = 1 << 30
    """Bytes of kept prompt states, their pages included; 0 keeps none."""
    kept_apart: int = 256
    """Least distance in tokens of two states kept in one prompt, except at its end."""
    kept_minimum: int = 64
    """Shortest prefix that is kept, in tokens."""
    kept_every: int | None = None
    """Distance of states kept for no other reason, so that unmarked prefixes can be shared; 0 for none, by
    default `prompt_rows`, but at least 1,024. A piece of a prompt ends where a state is kept."""
    copy_drafts: int = 3
    """Most tokens guessed ahead in a step by copying what followed the same words before; 0 for none."""

    eager: bool = False
    """Launch every kernel of a step by itself, where steps would be captured as CUDA graphs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("streams", self.streams, 1, 1024)
        check_integer("page", self.page, 4)
        for name, least in (
            ("chunk", GRID),
            ("prompt_rows", GRID),
            ("kept_minimum", GRID),
            ("kept_every", 0),
        ):
            value = getattr(self, name)
            if value is not None:
                check_integer(name, value, least)
                self._on_grid(name, value)
        check_integer("kept_apart", self.kept_apart, 1)
        check_integer("kept_bytes", self.kept_bytes, 0)
        check_integer("queue", self.queue, 1)
        check_integer("reply_share", self.reply_share, 1)
        check_integer("copy_drafts", self.copy_drafts, 0, 64)
        for name in ("pool_tokens", "state_bytes"):
            if getattr(self, name) is not None:
                check_integer(name, getattr(self, name), 1)
        if self.pool_tokens is not None and self.state_bytes is not None:
            raise UsageError("state_bytes", found="pool_tokens as well", expected="one of the two")

    def on(self, device: str) -> "StreamSettings":
        """The same with what is left to the kind of device: cpu or cuda."""
        rows = self.prompt_rows or (CPU_PROMPT_ROWS if device == "cpu" else GPU_PROMPT_ROWS)
        every = max(rows, CPU_PROMPT_ROWS) if self.kept_every is None else self.kept_every
        return replace(self, prompt_rows=rows, kept_every=every)

    @property
    def piece_rows(self) -> int:
        """Most prompt rows of a step while nothing is being written."""
        return self.prompt_rows or CPU_PROMPT_ROWS

    @property
    def step_rows(self) -> int:
        """Rows of one stream in a step: a token and the guesses behind it."""
        return 1 + max(self.drafts, self.copy_drafts)

    def _on_grid(self, name: str, value: int) -> None:
        if value % GRID:
            raise UsageError(name, found=str(value), expected=f"a multiple of {GRID}")
