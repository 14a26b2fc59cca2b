"""How many guesses each stream makes: as many as pay, none where none does."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from intarsia.engine.lanes.costs import Costs


class Prospect(NamedTuple):
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
    streams = len(prospects)
    gains = sorted(_gains(prospects), key=lambda gain: -gain.chance)
    deepest = max((gain.place for gain in gains), default=0)
    chains = sum(not prospect.copied for prospect in prospects)
    steps = [costs.step(streams)]
    """What a step with so many guesses takes."""
    best, best_speed = [0] * streams, streams / steps[0]
    for depth in range(deepest + 1):
        chained = costs.absorb(2 * chains) + (depth - 1) * costs.chain(chains) if depth else 0.0
        counts = [0] * streams
        tokens, guesses, time = float(streams), 0, steps[0] + chained
        for gain in gains:
            if gain.place > depth:
                continue
            if guesses + 1 == len(steps):
                steps.append(costs.step(streams + guesses + 1))
            grown = steps[guesses + 1] + chained
            if (tokens + gain.chance) / grown <= tokens / time:
                break
            tokens, guesses, time = tokens + gain.chance, guesses + 1, grown
            counts[gain.stream] += 1
        if tokens / time > best_speed:
            best, best_speed = counts, tokens / time
    return best


class _Gain(NamedTuple):
    """A guess that could be made."""

    chance: float
    """Of landing."""
    stream: int
    place: int
    """In the MTP layer's chain, from 1; 0 for a copied guess."""


def _gains(prospects: Sequence[Prospect]) -> Iterator[_Gain]:
    for stream, prospect in enumerate(prospects):
        chance = 1.0
        for place, rate in enumerate(prospect.rates, 1):
            chance *= rate
            yield _Gain(chance, stream, 0 if prospect.copied else place)
