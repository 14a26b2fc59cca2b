"""Which operations are timed, at which row counts, and how."""

from dataclasses import dataclass
from typing import Literal, get_args

from intarsia.core.config import check_integer, check_number
from intarsia.core.errors import UsageError

Operation = Literal["linear", "experts", "kda", "attention", "hyper", "head", "small", "encode", "storing"]
OPERATIONS: tuple[Operation, ...] = get_args(Operation)
MOST_ROWS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class KernelsSettings:
    """Operations of GLM-5.3-Flash on a GPU, weights and rows random. A GPU is needed."""

    only: tuple[Operation, ...] = OPERATIONS
    """Operations to time."""
    rows: tuple[int, ...] = ()
    """Row counts in place of each operation's own, where it runs with so many; encoders always take the same
    matrices."""
    peers: bool = False
    """Also time peers that are installed, in the same run; cuBLAS on BF16 weights always is."""
    variants: bool = False
    """Also time the plain Triton kernels that run where others refuse."""
    device: str = "cuda"
    """CUDA device: cuda or cuda:N."""
    tuning: str = "auto"
    """Tuned configurations: auto, the device's own file if there is one; off; or a file by name."""
    pause: float = 0.1
    """Seconds in which the device cools before each figure."""
    budget: float = 0.1
    """Seconds for which a figure's calls are repeated; the median counts."""
    jobs: int = 16
    """Processes, at most one a core, that compile everything beside each other before the first figure; with
    1, every kernel is compiled when its turn comes."""
    limit: float | None = None
    """Seconds after which no further figure is begun; what was timed until then is kept. Compiling gets half
    of them at most."""

    def __post_init__(self) -> None:
        if self.limit is not None:
            check_number("limit", self.limit, 0, 86400)
        if not self.only:
            raise UsageError("only", found="none", expected=f"some of {', '.join(OPERATIONS)}")
        for name in self.only:
            if name not in OPERATIONS:
                raise UsageError("only", found=name, expected=f"some of {', '.join(OPERATIONS)}")
        for count in self.rows:
            check_integer("rows", count, 1, MOST_ROWS)
        check_integer("jobs", self.jobs, 1, 256)
        check_number("pause", self.pause, 0, 60)
        check_number("budget", self.budget, 0, 60)
