"""Guesses for the next step: how many each lane makes, from where, and none where they do not pay."""

from collections.abc import Callable, Sequence

from intarsia.engine.budget import PageBudget
from intarsia.engine.lanes.acceptance import Acceptance
from intarsia.engine.lanes.choice import Prospect, choose
from intarsia.engine.lanes.costs import Costs
from intarsia.engine.lanes.lane import Lane
from intarsia.engine.lanes.mtp import MtpGuesses
from intarsia.engine.settings import StreamSettings

GuessSource = Callable[[Lane, int], "list[int] | None"]
"""Guesses of a script, for checks: up to so many for a lane, or None to let the engine guess."""

MTP_PRIOR = 0.7
COPY_PRIOR = 0.7
MOST_UNABSORBED = 64
PROBE_EVERY = 24
"""In every so many steps, streams whose guesses do not pay try one, since text and load change."""


class Guesser:
    """Chooses and makes guesses after a step, when all lanes' next tokens are known."""

    def __init__(
        self,
        settings: StreamSettings,
        budget: PageBudget,
        costs: Costs,
        mtp: MtpGuesses | None,
        source: GuessSource | None = None,
    ) -> None:
        """`mtp`: None for a network without an MTP layer or with drafts turned off."""
        self.overall = Acceptance()
        self._settings = settings
        self._budget = budget
        self._costs = costs
        self._mtp = mtp
        self._source = source
        self._steps = 0
        self._prior: list[float] = []

    def record(self, lane: Lane, right: int) -> None:
        """Learn that the first `right` of the lane's guesses were right."""
        if lane.drafts and not lane.forced_drafts:
            lane.acceptance.record(len(lane.drafts), right, copied=lane.copied)
            self.overall.record(len(lane.drafts), right, copied=lane.copied)

    def run(self, writing: Sequence[Lane], prompts: Sequence[Lane]) -> None:
        """Leave guesses in the lanes that write, and let the MTP layer follow those and the prompts."""
        wanted = [(lane, 0) for lane in prompts]
        guessing: list[Lane] = []
        prospects: list[Prospect] = []
        self._prior = self.overall.rates(self._settings.drafts, [MTP_PRIOR] * self._settings.drafts)
        for lane in writing:
            prospect = self._prospect(lane)
            if prospect is not None:
                guessing.append(lane)
                prospects.append(prospect)
        self._steps += 1
        probing = int(self._steps % PROBE_EVERY == 0)
        for lane, prospect, count in zip(guessing, prospects, self._counts(prospects), strict=True):
            count = max(count, probing)
            if prospect.copied:
                lane.drafts = lane.drafts[:count]
            elif count and self._budget.grow(lane, lane.unabsorbed.first, lane.done + count):
                wanted.append((lane, count))
        chosen = {id(lane) for lane, _ in wanted}
        wanted += [
            (lane, 0)
            for lane in writing
            if id(lane) not in chosen and lane.unabsorbed.count >= MOST_UNABSORBED and lane.request.draft
        ]
        if self._mtp is not None:
            self._mtp.run(wanted)

    def settle(self) -> bool:
        """Let all lanes' guesses be known; False if they were."""
        return self._mtp is not None and self._mtp.settle()

    def follows(self, lane: Lane) -> bool:
        """True if the MTP layer is to see the lane's rows: to guess from, or for states that others
        resume."""
        return self._mtp is not None and (lane.request.draft or lane.prompt_left > 0)

    def _prospect(self, lane: Lane) -> Prospect | None:
        """What the lane could guess; copied guesses are left in its drafts already."""
        lane.drafts, lane.copied, lane.forced_drafts, lane.masks = [], False, False, None
        most = min(lane.reply.room - 1, self._settings.step_rows - 1)
        if most < 1:
            return None
        if lane.reply.forced:
            lane.drafts, lane.forced_drafts = list(lane.reply.forced[:most]), True
            return None
        if not lane.request.draft:
            return None
        scripted = None if self._source is None else self._source(lane, most)
        if scripted is not None:
            lane.drafts = scripted[:most]
            return None
        return self._better(lane, most)

    def _better(self, lane: Lane, most: int) -> Prospect | None:
        """The copied guesses if more of them may land than of the MTP layer's."""
        copied: list[int] = []
        if lane.copies is not None:
            copied = lane.copies.propose(min(most, self._settings.copy_drafts))
        chain: tuple[float, ...] = ()
        if self._mtp is not None and lane.unabsorbed.rows:
            depth = min(most, self._settings.drafts)
            chain = tuple(lane.acceptance.rates(depth, self._prior))
        if not copied:
            return Prospect(chain) if chain else None
        rate = lane.acceptance.copy_rate(self.overall.copy_rate(COPY_PRIOR))
        copies = (rate,) * len(copied)
        if _expected(copies) >= _expected(chain):
            lane.drafts, lane.copied = copied, True
            return Prospect(copies, copied=True)
        return Prospect(chain) if chain else None

    def _counts(self, prospects: Sequence[Prospect]) -> list[int]:
        return choose(prospects, self._costs) if prospects else []


def _expected(rates: Sequence[float]) -> float:
    total, chance = 0.0, 1.0
    for rate in rates:
        chance *= rate
        total += chance
    return total
