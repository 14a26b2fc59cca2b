"""Which way a message takes: both ways round at once, each as far as it needs to."""

from dataclasses import dataclass
from typing import Literal

Side = Literal["prev", "next"]


@dataclass(frozen=True, slots=True)
class Route:
    """A rank's place in a ring (`closed`), or in a line whose first and last rank are not joined."""

    rank: int
    ranks: int
    closed: bool

    @property
    def hops(self) -> dict[Side, int]:
        """How many lines this rank's own messages travel on each side; every other rank is met once."""
        if self.closed:
            forward = self.ranks // 2
            return {"next": forward, "prev": self.ranks - 1 - forward}
        return {"next": self.ranks - 1 - self.rank, "prev": self.rank}

    def neighbour(self, side: Side) -> int:
        """The rank at the other end of a line."""
        return (self.rank + (1 if side == "next" else -1)) % self.ranks

    def nearest(self, missing: set[int]) -> int:
        """Of ranks nothing came of, one that nobody between here and there can have held up."""
        return min(missing, key=lambda source: (self._distance(source), source))

    def _distance(self, source: int) -> int:
        around = abs(self.rank - source)
        return min(around, self.ranks - around) if self.closed else around


def other(side: Side) -> Side:
    """The side a message goes on to that came in at this one."""
    return "next" if side == "prev" else "prev"
