"""A table of paths that a check must have taken, and what came of them."""

import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from intarsia.core.progress import SILENT, Phase, Progress


@dataclass(frozen=True, slots=True)
class Cell:
    """One path and how often it was taken."""

    group: str
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check found. It passed if nothing differed and no path was left out."""

    name: str
    cells: tuple[Cell, ...]
    failures: tuple[str, ...]
    """What differed, in words, the first of each kind."""
    compared: int
    """Tokens, or rows, that were compared and are equal."""
    seconds: float

    @property
    def empty(self) -> tuple[Cell, ...]:
        """Paths that were never taken."""
        return tuple(cell for cell in self.cells if not cell.count)

    @property
    def passed(self) -> bool:
        """True if the check may be relied on, and found nothing."""
        return not self.failures and not self.empty and self.compared > 0


@dataclass
class Coverage:
    """Counts paths while a check runs; only paths that were announced may be taken."""

    name: str
    progress: Progress = SILENT
    compared: int = 0
    failures: list[str] = field(default_factory=list)
    _counts: dict[tuple[str, str], int] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)
    _part: "_Part | None" = None

    def expect(self, group: str, names: Iterable[object]) -> None:
        """Announce paths that must be taken."""
        for name in names:
            self._counts.setdefault((group, str(name)), 0)

    @contextmanager
    def part(self, name: str = "") -> Iterator[None]:
        """A part of the check, or all of it, that announces paths and then takes them: a phase of cells."""
        with ExitStack() as stack:
            self._part = _Part(f"{self.name}, {name}" if name else self.name, len(self._counts), stack)
            try:
                yield
            finally:
                self._part = None

    def took(self, group: str, name: object) -> None:
        """Count a path; one that nobody asked for is left out."""
        key = group, str(name)
        if key not in self._counts:
            return
        self._counts[key] += 1
        if self._counts[key] == 1 and self._part is not None:
            self._part.advance(self.progress, len(self._counts))

    def compare(self, what: str, found: object, expected: object, size: int) -> None:
        """Count `size` more compared things, or note the difference."""
        if found == expected:
            self.compared += size
        else:
            self.failures.append(f"{what}: found {_short(found)}; expected {_short(expected)}")

    def require(self, holds: bool, what: str) -> None:
        """Note a failure unless something holds."""
        if not holds:
            self.failures.append(what)

    def report(self) -> CheckReport:
        """The table as it stands."""
        cells = tuple(Cell(group, name, count) for (group, name), count in self._counts.items())
        seconds = time.monotonic() - self._began
        return CheckReport(self.name, cells, tuple(self.failures), self.compared, seconds)


class _Part:
    """Opens its phase when the first path is taken: all of the part's are announced by then."""

    def __init__(self, name: str, known: int, stack: ExitStack) -> None:
        self._name, self._known, self._stack = name, known, stack
        self._phase: Phase | None = None

    def advance(self, progress: Progress, known: int) -> None:
        if self._phase is None:
            phase = progress.phase(self._name, known - self._known, "cells")
            self._phase = self._stack.enter_context(phase)
        self._phase.advance(1)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
