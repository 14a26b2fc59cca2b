"""Settings of a measured load."""

from dataclasses import dataclass

from intarsia.core.config import check_integer

PEAKS_ON_A_CPU = "peaks of memory against the plan's: on a CPU the process keeps what earlier loads freed"


@dataclass(frozen=True, kw_only=True)
class LoadsSettings:
    """How loads are measured."""

    device: str = "cpu"
    """Where the weights go: cpu, cuda or cuda:N."""
    repeat: int = 3
    """Loads of each kind, in turn; the median counts."""
    budget: int | None = None
    """Most working memory of a conversion in bytes; what it likes by default."""
    cold: bool = False
    """Ask the system to forget the files before each load."""

    def __post_init__(self) -> None:
        check_integer("repeat", self.repeat, 1, 100)
        if self.budget is not None:
            check_integer("budget", self.budget, 1)
