"""Who starts next: by priority, then by arrival, with bounded overtaking."""

from bisect import insort
from collections.abc import Callable

from intarsia.engine.budget import PageBudget
from intarsia.engine.lanes.lane import Lane
from intarsia.engine.places import AWAITED, NO_PAGES, NO_STREAM, Places

MOST_OVERTAKEN = 8
"""Later requests that may start before one that waits for room."""
MOST_TRIED = 64
"""Waiting requests that are looked at in a step."""


def turn(lane: Lane) -> tuple[int, int]:
    """The order of waiting: the lowest priority number first, then the earliest."""
    return lane.request.priority, lane.order


class Admission:
    """The queue of waiting lanes."""

    def __init__(self, places: Places, budget: PageBudget, send_back: Callable[[Lane], None]) -> None:
        """`send_back` takes a running lane's place away."""
        self.waiting: list[Lane] = []
        self.waiting_for = ""
        self._places = places
        self._budget = budget
        self._send_back = send_back

    def add(self, lane: Lane) -> None:
        """Queue a lane."""
        insort(self.waiting, lane, key=turn)

    def admit(self, running: list[Lane]) -> None:
        """Start what can be started; `running` gains it."""
        while self._start_one(running):
            pass
        if not self.waiting:
            self.waiting_for = ""

    def _start_one(self, running: list[Lane]) -> bool:
        blocked: Lane | None = None
        for lane in self.waiting[:MOST_TRIED]:
            if blocked is not None and not self._may_overtake(lane, blocked):
                return False
            reason = self._places.enter(lane, running)
            if not reason:
                self.waiting.remove(lane)
                running.append(lane)
                if blocked is not None:
                    blocked.overtaken += 1
                return True
            if reason == AWAITED:
                continue
            if blocked is None:
                blocked, self.waiting_for = lane, f"request {lane.request.id} waits for {reason}"
                if self._make_way(lane, reason, running):
                    return True
            if reason == NO_STREAM:
                return False
        return False

    def _may_overtake(self, lane: Lane, blocked: Lane) -> bool:
        """Only its equals go before a lane that waits for room: others would be sent back for it."""
        return lane.request.priority == blocked.request.priority and blocked.overtaken < MOST_OVERTAKEN

    def _make_way(self, lane: Lane, reason: str, running: list[Lane]) -> bool:
        """Send the latest of the least important lanes back, if that lets a more important one start."""
        lesser = [other for other in running if other.request.priority > lane.request.priority]
        if not lesser or (reason == NO_PAGES and not self._budget.would_fit(lane, lesser)):
            return False
        self._send_back(max(lesser, key=turn))
        return True
