"""What a step costs, measured while it runs. Times steer how many guesses are made, and nothing else."""

from collections import deque
from statistics import median
from typing import Protocol

REMEMBERED = 9
REFIT_AFTER = 8


class Costs(Protocol):
    """Times in any one unit."""

    def step(self, rows: int) -> float:
        """A step of the network with `rows` rows, drawing included."""
        ...

    def absorb(self) -> float:
        """Showing the MTP layer what was kept; its first guesses come with it."""
        ...

    def chain(self) -> float:
        """A further guess of the MTP layer, for all streams together."""
        ...


class MeasuredCosts:
    """Medians of the last readings, and a straight line through those of steps.

    A median, since a slow moment is no property of a step; before there are readings, the shape of a small
    network: a row costs little beside the step.
    """

    def __init__(self) -> None:
        self._steps: dict[int, deque[float]] = {}
        self._absorb: deque[float] = deque(maxlen=REMEMBERED)
        self._chain: deque[float] = deque(maxlen=REMEMBERED)
        self._line = (1.0, 0.03)
        self._readings = 0

    def record_step(self, rows: int, seconds: float) -> None:
        """A step without prompt rows."""
        self._steps.setdefault(rows, deque(maxlen=REMEMBERED)).append(seconds)
        self._readings += 1
        if self._readings % REFIT_AFTER == 0 or self._readings == 2:
            self._line = self._fit()

    def record_absorb(self, seconds: float) -> None:
        """A pass of the MTP layer over kept rows, prompts aside."""
        self._absorb.append(seconds)

    def record_chain(self, seconds: float) -> None:
        """One further guess."""
        self._chain.append(seconds)

    def step(self, rows: int) -> float:
        base, slope = self._line
        return base + slope * rows

    def absorb(self) -> float:
        return median(self._absorb) if self._absorb else 0.15 * self.step(1)

    def chain(self) -> float:
        return median(self._chain) if self._chain else self.absorb()

    def _fit(self) -> tuple[float, float]:
        """Least squares over the medians, never falling with the rows."""
        points = [(rows, median(times)) for rows, times in self._steps.items()]
        mean_rows = sum(rows for rows, _ in points) / len(points)
        mean_time = sum(time for _, time in points) / len(points)
        spread = sum((rows - mean_rows) ** 2 for rows, _ in points)
        if not spread:
            slope = 0.03 * mean_time / (1 + 0.03 * mean_rows)
        else:
            slope = sum((rows - mean_rows) * (time - mean_time) for rows, time in points) / spread
        slope = min(max(slope, 0.0), mean_time / max(mean_rows, 1.0))
        return mean_time - slope * mean_rows, slope
