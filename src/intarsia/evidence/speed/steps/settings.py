"""What is timed step by step, and on which network."""

from dataclasses import dataclass

from intarsia.core.config import GPU_PROMPT_ROWS, DataType, check_integer
from intarsia.core.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class StepsSettings:
    """The network, and how often each figure is taken. A GPU is needed."""

    synthetic: int | None = None
    """Main layers of a network with random weights, made on the device in place of a checkpoint."""
    geometry: str = "glm-5.3-flash"
    """Published model whose widths the random network has."""
    recipe: str = "fp4-local"
    """Recipe whose formats the random network has."""
    device: str = "cuda"
    """CUDA device: cuda or cuda:N."""
    tuning: str = "auto"
    """Tuned configurations: auto, the device's own file if there is one; off; or a file by name."""
    dtype: DataType = "bfloat16"
    """Type of activations; weights keep their formats."""
    steps: int = 30
    """Steps, or runs of a prompt, that a median is taken of; a prompt runs at most three times."""
    no_operations: bool = False
    """Leave out where the time of a step goes."""

    def __post_init__(self) -> None:
        check_integer("steps", self.steps, 1, 10_000)
        if self.synthetic is not None:
            check_integer("synthetic", self.synthetic, 1, 1000)


@dataclass(frozen=True, kw_only=True)
class DecodeSettings(StepsSettings):
    """Streams that write, each in the middle of a context of random cache rows."""

    streams: tuple[int, ...] = (1, 8, 32)
    """Streams that write at once."""
    context: int = 4096
    """Tokens behind each stream."""
    drafts: int = 3
    """Guesses a step whose cost is measured too; 0 for none."""
    eager: bool = False
    """Launch every kernel by itself instead of replaying captured steps."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_counts("streams", self.streams, 1024)
        check_integer("context", self.context, 1)
        check_integer("drafts", self.drafts, 0, 8)


@dataclass(frozen=True, kw_only=True)
class PrefillSettings(StepsSettings):
    """Prompts of made-up tokens, on an empty state."""

    prompts: tuple[int, ...] = (8192, 32768)
    """Prompt lengths in tokens."""
    piece: int = GPU_PROMPT_ROWS
    """Rows of a prompt that run at once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_counts("prompts", self.prompts, 1 << 20)
        check_integer("piece", self.piece, 64)
        if self.piece % 64:
            raise UsageError("piece", found=str(self.piece), expected="a multiple of 64")


def _check_counts(name: str, values: tuple[int, ...], most: int) -> None:
    if not values:
        raise UsageError(name, found="none", expected="at least one")
    for value in values:
        check_integer(name, value, 1, most)
