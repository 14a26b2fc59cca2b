"""What a step costs, measured while it runs. Times steer how many guesses are made, and nothing else."""

from collections import deque
from typing import Protocol

REMEMBERED = 9
ENOUGH = 6
MTP_SHARE = 0.15
USUAL_SLOPE = 0.03
"""What a row adds, in parts of a pass, where only one row count was ever seen."""


class Costs(Protocol):
    """Times in any one unit."""

    def step(self, rows: int) -> float:
        """A step of the network with `rows` rows, drawing included."""
        ...

    def absorb(self, rows: int) -> float:
        """Showing the MTP layer `rows` rows that were kept; a first guess of every stream comes with it."""
        ...

    def chain(self, streams: int) -> float:
        """A further guess of the MTP layer for so many streams."""
        ...


class Line:
    """A straight line through the fastest of the last readings at every row count.

    The fastest, since a slow moment is no property of a pass; and nothing before there are a few, since the
    first passes of a process are slow ones.
    """

    def __init__(self) -> None:
        self._base = self._slope = 0.0
        self._readings: dict[int, deque[float]] = {}
        self._count = 0

    @property
    def known(self) -> bool:
        """True once there are enough readings to go by."""
        return self._count >= ENOUGH

    def record(self, rows: int, seconds: float) -> None:
        """Learn what a pass of `rows` rows took."""
        self._readings.setdefault(rows, deque(maxlen=REMEMBERED)).append(seconds)
        self._count += 1
        if self._count % ENOUGH == 0:
            self._fit()

    def at(self, rows: int) -> float:
        """What a pass of `rows` rows is expected to take."""
        return self._base + self._slope * rows

    def _fit(self) -> None:
        """Least squares, never falling with the rows and never below nothing at none."""
        points = [(rows, min(times)) for rows, times in self._readings.items()]
        mean_rows = sum(rows for rows, _ in points) / len(points)
        mean_time = sum(time for _, time in points) / len(points)
        spread = sum((rows - mean_rows) ** 2 for rows, _ in points)
        if spread:
            slope = sum((rows - mean_rows) * (time - mean_time) for rows, time in points) / spread
        else:
            slope = USUAL_SLOPE * mean_time / (1 + USUAL_SLOPE * mean_rows)
        self._slope = min(max(slope, 0.0), mean_time / max(mean_rows, 1.0))
        self._base = mean_time - self._slope * mean_rows


class MeasuredCosts:
    """Costs from readings; before there are enough, those of a network whose MTP layer is a seventh of it."""

    def __init__(self) -> None:
        self.steps, self.absorbs, self.chains = Line(), Line(), Line()

    def step(self, rows: int) -> float:
        return self.steps.at(rows) if self.steps.known else 1.0 + USUAL_SLOPE * rows

    def absorb(self, rows: int) -> float:
        return self.absorbs.at(rows) if self._comparable(self.absorbs) else MTP_SHARE * self.step(rows)

    def chain(self, streams: int) -> float:
        return self.chains.at(streams) if self._comparable(self.chains) else MTP_SHARE * self.step(streams)

    def _comparable(self, line: Line) -> bool:
        return line.known and self.steps.known
