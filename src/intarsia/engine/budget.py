"""Who may take which pages: what running lanes were promised, and what is left to grow into."""

from collections.abc import Collection

from intarsia.engine.kept import KeptState, KeptStore
from intarsia.engine.lanes.lane import Lane
from intarsia.engine.pages import KeptPages, PagePool

SLACK = 64
"""Tokens reserved beyond prompt and reply share, for guesses."""


class PageBudget:
    """Gives pages to lanes so that no lane within its reservation ever waits for one."""

    def __init__(self, pool: PagePool, store: KeptStore, window: int, reply_share: int) -> None:
        self._pool = pool
        self._store = store
        self._window = window
        self._reply_share = reply_share
        self._running: list[Lane] = []

    @property
    def spare(self) -> int:
        """Free pages that no running lane was promised; below zero never."""
        return self._pool.free - sum(
            max(0, lane.reserved - self._pool.held(lane.slot)) for lane in self._running
        )

    def reservation(self, lane: Lane) -> int:
        """Pages for what the lane has and a share of what it may still write."""
        share = min(lane.reply.room, self._reply_share) + SLACK
        return self._pool.pages_for(min(self._window, lane.length + share))

    def admit(self, lane: Lane, kept: KeptState | None) -> bool:
        """Reserve a lane's pages, kept ones shared; lane.slot is set already. False if they are not there
        now.

        Kept states make room, the one it resumes from last of all.
        """
        reserved = self.reservation(lane)
        pages = None if kept is None else kept.pages
        needed = self._cost(pages, reserved)
        spare = [] if kept is None else [kept]
        if not self._make_room(needed, spare):
            return False
        lane.reserved = reserved
        if pages is not None:
            self._pool.share(lane.slot, pages)
            self._pool.ensure(lane.slot, pages.end, begin=pages.end - 1)
        self._running.append(lane)
        return True

    def would_fit(self, lane: Lane, without: Collection[Lane]) -> bool:
        """True if the lane could start once those lanes and all kept states were gone."""
        freed = sum(max(other.reserved, self._pool.held(other.slot)) for other in without)
        return self.reservation(lane) <= self.spare + freed + len(self._pool.only_kept)

    def grow(self, lane: Lane, begin: int, end: int) -> bool:
        """Let a lane write positions from `begin` to `end`; False if that needs pages that are not there
        now."""
        missing = self._pool.missing(lane.slot, end, begin)
        if not missing:
            return True
        beyond = missing - max(0, lane.reserved - self._pool.held(lane.slot))
        if beyond > 0 and not self._make_room(beyond, ()):
            return False
        self._pool.ensure(lane.slot, end, begin)
        return True

    def shrink(self, lane: Lane) -> None:
        """Take back pages beyond the lane's tokens."""
        self._pool.truncate(lane.slot, lane.length)

    def leave(self, lane: Lane) -> None:
        """Take back all of a lane's pages and its promise."""
        self._pool.truncate(lane.slot, 0)
        self._running.remove(lane)
        lane.reserved = 0

    def _make_room(self, needed: int, spare: Collection[KeptState]) -> bool:
        missing = needed - self.spare
        return missing <= 0 or self._store.give_pages(self._pool.free + missing, spare)

    def _cost(self, kept: KeptPages | None, reserved: int) -> int:
        return reserved if kept is None else reserved - self._pool.usable(kept)
