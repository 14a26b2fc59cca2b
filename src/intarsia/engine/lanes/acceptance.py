"""How often guesses turn out right, by their place in the chain."""

from collections.abc import Sequence
from dataclasses import dataclass, field

FADE = 0.97
"""Weight of the past at every new outcome: about the last thirty count."""
PRIOR_WEIGHT = 4.0


@dataclass(slots=True)
class Faded:
    """A rate over the recent past, leaning on a prior while little is known."""

    tried: float = 0.0
    right: float = 0.0

    def record(self, right: bool) -> None:
        self.tried = self.tried * FADE + 1
        self.right = self.right * FADE + right

    def rate(self, prior: float) -> float:
        return (self.right + PRIOR_WEIGHT * prior) / (self.tried + PRIOR_WEIGHT)


@dataclass(slots=True)
class Acceptance:
    """Outcomes of one request's guesses, or of all requests'.

    A guess counts only if all before it in its step were right: these are conditional rates.
    """

    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    copied: int = 0
    copied_accepted: int = 0
    _places: list[Faded] = field(default_factory=list)
    _copy: Faded = field(default_factory=Faded)

    def record(self, drafts: int, right: int, *, copied: bool) -> None:
        """Learn that of `drafts` guesses the first `right` were right."""
        while len(self.drafted) < drafts:
            self.drafted.append(0)
            self.accepted.append(0)
        for place in range(drafts):
            self.drafted[place] += 1
            self.accepted[place] += place < right
        if copied:
            self.copied += drafts
            self.copied_accepted += right
        while not copied and len(self._places) < drafts:
            self._places.append(Faded())
        for place in range(min(drafts, right + 1)):
            (self._copy if copied else self._places[place]).record(place < right)

    def rates(self, most: int, prior: Sequence[float]) -> list[float]:
        """Chance of each of `most` guesses of the MTP layer, given that those before it were right."""
        known = [place.rate(rate) for place, rate in zip(self._places[:most], prior, strict=False)]
        return known + list(prior[len(known) : most])

    def copy_rate(self, prior: float) -> float:
        """Chance of a copied guess, given that those before it were right."""
        return self._copy.rate(prior)
