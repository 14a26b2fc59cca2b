"""Figures beside their floors."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from intarsia.evidence.kernels.timing import Timing


@dataclass(frozen=True, slots=True)
class Rates:
    """What the device holds, measured before the first figure: bytes a second that it streams, operations a
    second of large BF16 products before its clock drops.
    """

    bytes_a_second: float
    operations_a_second: float

    def floor_us(self, moved: float, operations: float = 0.0) -> float:
        """Microseconds in which so many bytes cannot be moved faster, nor so many operations be done."""
        return max(moved / self.bytes_a_second, operations / self.operations_a_second) * 1e6


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `rows` are those of the call; `beside` are microseconds of variants and peers, by name.

    Nine of ten repeats took from `low_us` to `high_us`; clock and temperature are those right after them,
    None where they are not known.
    """

    operation: str
    case: str
    rows: int
    us: float
    floor_us: float
    beside: Mapping[str, float] = field(default_factory=dict)
    low_us: float | None = None
    high_us: float | None = None
    clock_mhz: int | None = None
    temperature_c: int | None = None

    @property
    def ratio(self) -> float:
        """The time over its floor."""
        return self.us / self.floor_us

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self) | {"ratio": self.ratio}


def _silent(row: Row) -> None:
    pass


@dataclass(slots=True)
class Table:
    """All rows in the order in which they were measured; `told` gets each as soon as it is known."""

    rates: Rates
    told: Callable[[Row], None] = _silent
    rows: list[Row] = field(default_factory=list)

    def add(
        self,
        operation: str,
        case: str,
        rows: int,
        taken: Timing,
        *,
        moved: float,
        operations: float = 0.0,
        beside: Mapping[str, float] | None = None,
    ) -> None:
        """Enter a time. Its floor: bytes that must move, or multiplications and additions."""
        row = Row(
            operation,
            case,
            rows,
            taken.us,
            self.rates.floor_us(moved, operations),
            dict(beside or {}),
            taken.low_us,
            taken.high_us,
            taken.clock_mhz,
            taken.temperature_c,
        )
        self.rows.append(row)
        self.told(row)
