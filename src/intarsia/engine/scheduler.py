"""What a step runs: a row or more of every lane that writes, and pieces of prompts between them."""

from collections.abc import Sequence

from intarsia.engine.admission import turn
from intarsia.engine.budget import PageBudget
from intarsia.engine.lanes.lane import Lane
from intarsia.engine.settings import GRID, StreamSettings
from intarsia.engine.step import Part

MOST_PASSED_OVER = 8
"""Steps in which a prompt may get nothing before it goes first."""


class Scheduler:
    """Lays out steps. It looks at lanes and pages only, never at a clock."""

    def __init__(self, settings: StreamSettings, budget: PageBudget) -> None:
        self._settings = settings
        self._budget = budget

    def parts(self, running: Sequence[Lane]) -> list[Part]:
        """The next step. Lanes that need a page which is not there are left out, the latest first."""
        lanes = sorted(running, key=turn)
        lanes = [lane for lane in lanes if lane.suspect][:1] or lanes
        writing = [part for lane in lanes if (part := self._writing_part(lane)) is not None]
        rows = self._settings.chunk if writing else self._settings.piece_rows
        return writing + self._prompt_parts(lanes, rows)

    def _writing_part(self, lane: Lane) -> Part | None:
        if lane.writing:
            part = Part(lane, lane.done, [lane.reply.tokens[-1], *lane.drafts], True)
            part.logits = len(part.tokens)
            if self._fits(part):
                return part
            if lane.drafts:
                lane.drafts = []
                lane.masks = None if lane.masks is None else lane.masks[:1]
                part = Part(lane, lane.done, part.tokens[:1], True, logits=1)
                if self._fits(part):
                    return part
        elif lane.replay_left and not lane.prompt_left:
            end = min(lane.length - 1, lane.done + self._settings.step_rows)
            part = Part(lane, lane.done, lane.tokens(lane.done, end), True)
            if self._fits(part):
                return part
        return None

    def _prompt_parts(self, lanes: Sequence[Lane], rows: int) -> list[Part]:
        """Pieces of prompts, those with the fewest tokens left first, within `rows`."""
        parts = []
        for lane in sorted((lane for lane in lanes if lane.prompt_left), key=_prompt_turn):
            end = self._piece_end(lane, rows)
            part = Part(lane, lane.done, lane.tokens(lane.done, end), False)
            if end <= lane.done or not self._fits(part):
                lane.passed_over += 1
                continue
            lane.passed_over = 0
            speaks = not lane.reply.tokens and lane.reply.finish is None
            part.logits = int(end == len(lane.prompt) and speaks)
            rows -= len(part.tokens)
            parts.append(part)
        return parts

    def _piece_end(self, lane: Lane, rows: int) -> int:
        """Where the lane's next piece ends: with the prompt, at the next kept state, or on the grid."""
        end = len(lane.prompt) if not lane.points else lane.points[-1].position
        if end - lane.done > rows:
            end = (lane.done + rows) // GRID * GRID
        return end

    def _fits(self, part: Part) -> bool:
        unabsorbed = part.lane.unabsorbed
        begin = min(part.position, unabsorbed.first) if unabsorbed.rows else part.position
        return self._budget.grow(part.lane, begin, part.end)


def _prompt_turn(lane: Lane) -> tuple[bool, int, int, int]:
    starved = lane.passed_over >= MOST_PASSED_OVER
    return (not starved, lane.request.priority, lane.prompt_left, lane.order)
