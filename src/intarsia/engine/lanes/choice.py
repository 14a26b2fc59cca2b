"""How many guesses each stream makes: as many as pay, none where none does."""

from collections.abc import Sequence
from dataclasses import dataclass

from intarsia.engine.lanes.costs import Costs


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a stream could guess."""

    rates: tuple[float, ...]
    """Chance of each guess of a chain, given that those before it were right; as many as are allowed."""
    copied: bool = False
    """The guesses are at hand and cost no pass of the MTP layer."""


def choose(prospects: Sequence[Prospect], costs: Costs) -> list[int]:
    """The number of guesses for every stream that gives the most tokens in a unit of time.

    The chain of the MTP layer serves all streams at once, so its depth is tried from none upwards; at each
    depth a guess is taken if its chance of landing is worth its row.
    """
    best, best_speed = [0] * len(prospects), len(prospects) / costs.step(len(prospects))
    deepest = max((len(prospect.rates) for prospect in prospects if not prospect.copied), default=0)
    for depth in range(deepest + 1):
        counts, speed = _at_depth(prospects, depth, costs)
        if speed > best_speed:
            best, best_speed = counts, speed
    return best


def _at_depth(prospects: Sequence[Prospect], depth: int, costs: Costs) -> tuple[list[int], float]:
    gains: list[tuple[float, int]] = []
    for stream, prospect in enumerate(prospects):
        chance = 1.0
        for rate in prospect.rates if prospect.copied else prospect.rates[:depth]:
            chance *= rate
            gains.append((chance, stream))
    gains.sort(key=lambda gain: -gain[0])
    counts = [0] * len(prospects)
    tokens, rows = float(len(prospects)), len(prospects)
    chains = sum(not prospect.copied for prospect in prospects) if depth else 0
    chained = costs.absorb(2 * chains) + (depth - 1) * costs.chain(chains) if chains else 0.0
    time = costs.step(rows) + chained
    for chance, stream in gains:
        grown = costs.step(rows + 1) + chained
        if (tokens + chance) / grown <= tokens / time:
            break
        tokens, rows, time = tokens + chance, rows + 1, grown
        counts[stream] += 1
    return counts, tokens / time
