"""Lanes' places in the caches: a stream, pages, and a prompt's beginning from a kept state."""

import heapq
import logging
from collections.abc import Sequence

from torch import Tensor

from intarsia.engine.budget import PageBudget
from intarsia.engine.kept import KeepPoint, KeptState, KeptStore, Match, keep_points, restore, take
from intarsia.engine.lanes.lane import Lane, Stretch, Unabsorbed
from intarsia.engine.pages import PagePool
from intarsia.engine.settings import GRID, StreamSettings
from intarsia.engine.sizes import StateSizes
from intarsia.models.glm5_next.state import State

LOG = logging.getLogger(__name__)
AWAITED = "the beginning of its prompt, which another request is running"
NO_STREAM = "a stream"
NO_PAGES = "pages"


class Places:
    """Gives lanes a stream and pages, and takes them back."""

    def __init__(
        self,
        state: State,
        pool: PagePool,
        store: KeptStore,
        budget: PageBudget,
        settings: StreamSettings,
        sizes: StateSizes,
    ) -> None:
        self._state = state
        self._pool = pool
        self._store = store
        self._budget = budget
        self._settings = settings
        self._sizes = sizes
        self._free = list(range(settings.streams))
        self._runs = 0

    @property
    def free(self) -> int:
        """Streams that no lane has."""
        return len(self._free)

    def enter(self, lane: Lane, running: Sequence[Lane]) -> str:
        """Give a waiting lane its place; what it has to wait for instead, or nothing."""
        if not self._free:
            return NO_STREAM
        match = self._match(lane)
        if self._awaits(lane, match, running):
            return AWAITED
        lane.slot = heapq.heappop(self._free)
        kept = match.state
        if not self._budget.admit(lane, kept):
            kept = None
            # With nothing running, the state to resume from may itself be what holds the pages.
            if running or not self._budget.admit(lane, None):
                heapq.heappush(self._free, lane.slot)
                lane.slot = -1
                return NO_PAGES
        self._begin(lane, match, kept)
        return ""

    def leave(self, lane: Lane) -> None:
        """Take a lane's place; what it has written so far would have to run again."""
        self._budget.leave(lane)
        heapq.heappush(self._free, lane.slot)
        lane.slot, lane.done, lane.passed_over = -1, 0, 0
        lane.points, lane.drafts, lane.masks = [], [], None
        lane.unabsorbed = Unabsorbed()

    def keep(self, lane: Lane, hidden: Tensor | None) -> None:
        """Keep the state at the point the lane has reached; `hidden` [D] is the row before it."""
        point = lane.points.pop()
        state = KeptState(
            prompt=lane.prompt,
            digests=lane.digests,
            position=point.position,
            kind=point.kind,
            run=lane.run,
            snapshot=take(self._state, lane.slot, hidden),
            pages=self._pool.keep(lane.slot, point.position),
        )
        kept = self._store.keep(state)
        LOG.info(
            "request %s: %s the state at token %d of %d (%s); %d states, %.1f of %.1f MiB",
            lane.request.id,
            "kept" if kept else "did not keep",
            point.position,
            len(lane.prompt),
            point.kind,
            len(self._store),
            self._store.nbytes / 2**20,
            self._store.budget / 2**20,
        )

    def _match(self, lane: Lane) -> Match:
        request = lane.request
        if not request.cache:
            return Match(None, "not resumed: the request does without kept states")
        if not self._store.budget:
            return Match(None, "not resumed: no states are kept")
        if lane.match is None or lane.match[0] != self._store.version:
            lane.match = self._store.version, self._store.find(lane.prompt, lane.digests)
        match = lane.match[1]
        if request.prompt_logprobs is not None:
            return Match(None, "not resumed: prompt logprobs need the whole prompt", match.existing)
        if len(lane.prompt) <= self._settings.kept_minimum:
            return Match(None, f"not resumed: at most {self._settings.kept_minimum} tokens long")
        return match

    def _awaits(self, lane: Lane, match: Match, running: Sequence[Lane]) -> bool:
        """True while another lane is about to keep a longer beginning of this prompt."""
        if not lane.request.cache or lane.request.prompt_logprobs is not None:
            return False
        return any(
            match.position < point.position < len(lane.prompt)
            and other.digests[point.position // GRID - 1] == lane.digests[point.position // GRID - 1]
            for other in running
            for point in other.points
        )

    def _begin(self, lane: Lane, match: Match, kept: KeptState | None) -> None:
        self._runs += 1
        lane.run = self._runs
        if lane.request.cache and self._store.budget:
            self._store.use(kept)
        if kept is None:
            self._state.reset(lane.slot)
            lane.done, lane.unabsorbed = 0, Unabsorbed()
        else:
            restore(self._state, lane.slot, kept.snapshot)
            lane.done = kept.position
            hidden = kept.snapshot.hidden
            lane.unabsorbed = Unabsorbed(kept.position)
            if hidden is not None:
                lane.unabsorbed.add(kept.position - 1, Stretch(hidden.unsqueeze(0), 0, 1))
        if not lane.cache_reason:
            lane.cached, lane.cache_reason = lane.done, match.reason
        lane.points = self._points(lane, match, kept)
        LOG.info("request %s: %s", lane.request.id, match.reason)

    def _points(self, lane: Lane, match: Match, kept: KeptState | None) -> list[KeepPoint]:
        """The points for which there is room, made now; the next one last."""
        if not lane.request.cache or not self._store.budget:
            return []
        points = keep_points(lane.request, lane.done, match.existing, match.parting, self._settings)
        spare = [] if kept is None else [kept]
        while points:
            pages = self._pool.pages_for(max(point.position for point in points))
            fresh = pages - (0 if kept is None else len(kept.pages.pages) - 1)
            needed = len(points) * self._sizes.kept + fresh * self._sizes.page
            if self._store.make_room(needed, spare) or (len(points) == 1 and self._store.make_room(needed)):
                break
            points.pop()
            self._store.counts.refused += 1
        return sorted(points, key=lambda point: -point.position)
