"""The configurations that an operation may run with: a table of data an operation."""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from intarsia.kernels.tuning.errors import OperationError

Configuration = Any
"""A frozen dataclass of an operation's own, its fields integers, booleans, None or tuples of integers."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where one configuration holds: an operation on weights of some formats and one shape, for row counts up
    to `rows`, the largest of its bucket.
    """

    operation: str
    formats: tuple[str, ...]
    shape: tuple[int, ...]
    rows: int

    def __str__(self) -> str:
        formats = "+".join(self.formats)
        shape = ", ".join(map(str, self.shape))
        return f"{self.operation} {formats}[{shape}] up to {self.rows:,} rows"


@dataclass(frozen=True, slots=True)
class Tunable:
    """What of an operation may be chosen.

    `buckets` are the largest row counts of the buckets, rising; more rows than the last belong to it too.
    `refuse` says why a site cannot be, or the empty string, and looks at nothing but the site: it is asked
    about whatever a file holds. `default` is what runs where nothing was tuned, `candidates` all that may
    run, the default among them.
    """

    operation: str
    buckets: tuple[int, ...]
    refuse: Callable[[Site], str]
    default: Callable[[Site], Configuration]
    candidates: Callable[[Site], Sequence[Configuration]]

    def bucket(self, rows: int) -> int:
        """The largest row count of the bucket that so many rows belong to."""
        return next((most for most in self.buckets if rows <= most), self.buckets[-1])

    def smallest(self, bucket: int) -> int:
        """The fewest rows that belong to a bucket."""
        place = self.buckets.index(bucket)
        return self.buckets[place - 1] + 1 if place else 1


PLACES = ("intarsia.kernels.linear.candidates", "intarsia.kernels.experts.candidates")
"""Modules that offer candidates."""
_OFFERED: dict[str, Tunable] = {}


def offer(tunable: Tunable) -> None:
    """Enter an operation's candidates into the table; one that is there already is replaced."""
    _OFFERED[tunable.operation] = tunable


def configurations(operation: str) -> Tunable:
    """The candidates of an operation. Raises OperationError for one that offers none."""
    if operation not in _OFFERED and operation not in operations():
        expected = f"one of {', '.join(_OFFERED)}"
        raise OperationError(
            "operation", found=f"{operation}, which has no configurations", expected=expected
        )
    return _OFFERED[operation]


def operations() -> tuple[str, ...]:
    """The operations that offer candidates."""
    for place in PLACES:
        importlib.import_module(place)
    return tuple(_OFFERED)


Value = int | bool | str | list[int] | None


def described(configuration: Configuration) -> dict[str, Value]:
    """A configuration as JSON values: the name of its class as `form`, and its fields."""
    values = asdict(configuration).items()
    return {
        "form": type(configuration).__name__,
        **{name: list(value) if isinstance(value, tuple) else value for name, value in values},
    }
