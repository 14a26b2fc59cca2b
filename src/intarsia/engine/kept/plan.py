"""Where in a prompt a state is worth keeping."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from intarsia.engine.requests import Request
from intarsia.engine.settings import GRID, StreamSettings

Kind = Literal["end", "rewind", "shared", "between"]
"""end: of the rendered history; rewind: where the last user turn begins; shared: where other conversations
part."""

# A prompt of a million tokens does not fill the store by itself.
MOST_BETWEEN = 8
_WORTH: tuple[Kind, ...] = ("end", "shared", "rewind", "between")


@dataclass(frozen=True, slots=True)
class KeepPoint:
    """A position of the grid and why a state is kept there."""

    position: int
    kind: Kind


def keep_points(
    request: Request, begin: int, existing: Collection[int], parting: int, settings: StreamSettings
) -> list[KeepPoint]:
    """Points of the prompt that the pass from `begin` on goes through, the most valuable first.

    existing: positions of this prompt at which states are kept already; parting: where the prompt parts
    from all kept ones, 0 if nowhere. Points other than the end keep their distance from the others and from
    existing ones.
    """
    tokens = len(request.tokens)
    last = (tokens - 1) // GRID * GRID
    end = min(last, _down(max(request.keep_at, default=tokens - 1)))
    chosen: list[KeepPoint] = []
    taken = set(existing)

    def add(position: int, kind: Kind) -> None:
        if not max(begin, settings.kept_minimum - 1) < position <= last or position in taken:
            return
        if kind != "end" and any(abs(position - other) < settings.kept_apart for other in taken - {end}):
            return
        taken.add(position)
        chosen.append(KeepPoint(position, kind))

    for position in request.shared_at:
        add(_down(position), "shared")
    add(end, "end")
    for position in sorted(set(request.keep_at) - set(request.shared_at), reverse=True):
        add(_down(position), "rewind")
    add(_down(parting), "shared")
    if settings.kept_every:
        step = max(settings.kept_every, _down(tokens // MOST_BETWEEN))
        for position in range(step, last, step):
            add(position, "between")
    return sorted(chosen, key=lambda point: _WORTH.index(point.kind))


def _down(position: int) -> int:
    return position // GRID * GRID
