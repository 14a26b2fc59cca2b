"""What the parts of a run share: sizes, random numbers, the clock, the table, and peers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from intarsia.evidence.errors import NumbersError, TimeUpError
from intarsia.evidence.kernels.table import Table
from intarsia.evidence.kernels.timing import Call, Clock, Timing, in_turn
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.kernels import choice
from intarsia.kernels.errors import KernelError

NOT_ASKED = "not asked for"


@dataclass(slots=True)
class Bench:
    """One run. `rows` are the counts to take in place of each operation's own, none for those; `eager` times
    calls that cannot be captured.

    `skipped` are variants and peers that were not timed, with the reason.
    """

    config: Glm5NextConfig
    device: torch.device
    clock: Clock
    table: Table
    rows: Sequence[int] = ()
    peers: bool = False
    variants: bool = False
    eager: Clock | None = None
    skipped: dict[str, str] = field(default_factory=dict)
    generator: torch.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.generator = torch.Generator(self.device).manual_seed(0)

    def numbers(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        """Normal random numbers."""
        return torch.randn(shape, generator=self.generator, device=self.device, dtype=dtype)

    def integers(self, values: Sequence[int]) -> Tensor:
        """int32 on the device."""
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def counts(self, own: Sequence[int], *, least: int = 1, most: int | None = None) -> list[int]:
        """Row counts to time of an operation that runs with `least` to `most` rows."""
        return [count for count in self.rows or own if least <= count and (most is None or count <= most)]

    def turns(self, one: int) -> int:
        """How many weights of so many bytes take turns."""
        return in_turn(one)

    def us(self, calls: Sequence[Call]) -> float:
        """The median alone."""
        return self.clock(calls).us

    def finite(self, case: str, calls: Sequence[Callable[[], Tensor]]) -> Timing:
        """The time of calls whose results must be finite; raises NumbersError where one is not."""
        for call in calls:
            if not bool(torch.isfinite(call().float()).all()):
                raise NumbersError(case, found="a result that is not finite", expected="finite results")
        return self.clock(calls)

    def variant(self, name: str, kernel: str, calls: Sequence[Call]) -> dict[str, float]:
        """Under `name`, the time of the same calls by another kernel; nothing where that refuses, and where
        variants were not asked for.
        """
        if not self.variants:
            self.skipped.setdefault(name, NOT_ASKED)
            return {}
        try:
            with choice.forced(kernel):
                return {name: self.us(calls)}
        except KernelError as error:
            self.skipped.setdefault(name, error.found)
            return {}

    def peer(
        self, name: str, ready: Callable[[], Sequence[Call]], *, compiles: bool = True
    ) -> dict[str, float]:
        """Under `name`, the time of a peer's calls; nothing, and the reason kept, where they cannot run.
        `compiles`: whether their first run compiles something.

        What a peer raises is its own affair: the rest of the run goes on.
        """
        if not self.peers:
            self.skipped.setdefault(name, NOT_ASKED)
            return {}
        try:
            return {name: self.us(ready())}
        except TimeUpError:
            raise
        except Exception as error:
            self.skipped.setdefault(name, f"{type(error).__name__}: {error}".partition("\n")[0])
            return {}
