"""What is tuned, and how long that may take."""

from dataclasses import dataclass
from typing import Literal, get_args

from intarsia.core.config import MOST_RANKS, ScaleForm, check_integer, check_number
from intarsia.core.errors import UsageError

Part = Literal["linear", "experts"]
PARTS: tuple[Part, ...] = get_args(Part)
MOST_ROWS = 8192


@dataclass(frozen=True, kw_only=True)
class TuneSettings:
    """A search for the fastest configurations of a network's kernels. A GPU is needed."""

    geometry: str | None = None
    """Published model whose sizes are tuned, in place of a checkpoint."""
    recipe: str = "fp4-local"
    """Which modules of the geometry have which format."""
    only: tuple[Part, ...] = PARTS
    """Operations to tune."""
    rows: tuple[int, ...] = (1, 8, 16, 32, 128, 1024)
    """Row counts: the bucket of each is tuned, for all that belong to it."""
    expert_scales: ScaleForm = "expanded"
    """Form of the experts' block scales that is tuned."""
    tp: tuple[int, ...] = (1,)
    """Counts of ranks whose shares are tuned, on this one device."""
    device: str = "cuda"
    """CUDA device: cuda or cuda:N."""
    budget: float = 900.0
    """Seconds after which nothing new is begun; what was found until then is kept."""
    repeats: int = 7
    """Turns in which the fastest candidates and the default are timed."""
    jobs: int = 8
    """Processes that compile candidates; each holds weights of its own on the device."""

    def __post_init__(self) -> None:
        if not self.only or any(name not in PARTS for name in self.only):
            found = ", ".join(self.only) or "none"
            raise UsageError("only", found=found, expected=f"some of {', '.join(PARTS)}")
        if not self.rows:
            raise UsageError("rows", found="none", expected="row counts")
        for count in self.rows:
            check_integer("rows", count, 1, MOST_ROWS)
        if not self.tp:
            raise UsageError("tp", found="none", expected="counts of ranks")
        for count in self.tp:
            check_integer("tp", count, 1, MOST_RANKS)
        check_number("budget", self.budget, 0, 86400)
        check_integer("repeats", self.repeats, 3, 1000)
        check_integer("jobs", self.jobs, 1, 256)
