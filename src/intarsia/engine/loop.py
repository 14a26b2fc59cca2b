"""The engine's work, one step at a time and without a thread: what tests and checks drive directly."""

import logging
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from intarsia.engine.admission import Admission, turn
from intarsia.engine.budget import PageBudget
from intarsia.engine.counters import Counters
from intarsia.engine.drawing import Drawing, tell_prompt
from intarsia.engine.events import Finished, FinishReason
from intarsia.engine.graphs.capture import Captures, Recorder
from intarsia.engine.graphs.main_step import MainOutput
from intarsia.engine.kept import KeptStore, copy_page
from intarsia.engine.lanes.costs import Costs, MeasuredCosts
from intarsia.engine.lanes.guesser import Guesser, GuessSource
from intarsia.engine.lanes.lane import Lane, Stretch, Unabsorbed
from intarsia.engine.lanes.mtp import MtpGuesses
from intarsia.engine.lanes.verify import take
from intarsia.engine.pages import PagePool
from intarsia.engine.places import Places
from intarsia.engine.sampling.shards import Shards
from intarsia.engine.scheduler import Scheduler
from intarsia.engine.settings import StreamSettings
from intarsia.engine.sizes import Capacity
from intarsia.engine.step import Part, StepRunner
from intarsia.groups.errors import RankLostError
from intarsia.models.glm5_next.model import Glm5NextModel

LOG = logging.getLogger(__name__)
Clock = Callable[[], float]
Watch = Callable[[Sequence[tuple[Part, int]]], None]
"""Is shown every step's parts and how many rows of each were kept; for checks and benchmarks."""


class StepLoop:
    """Serves lanes. Not safe for several threads: one caller adds lanes and calls `step`."""

    def __init__(
        self,
        model: Glm5NextModel,
        settings: StreamSettings,
        capacity: Capacity,
        *,
        costs: Costs | None = None,
        source: GuessSource | None = None,
        clock: Clock = time.monotonic,
        watch: Watch | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """Allocate the state. `costs` replaces measuring, `source` the engine's own guesses, `recorder` the
        device's way of capturing steps."""
        self.capacity = capacity
        self.running: list[Lane] = []
        self.counters = Counters()
        self.step_began = 0.0
        """When the step in progress began, 0 between steps."""
        self.step_lanes: tuple[str, ...] = ()
        state = model.new_state(capacity.state)
        self.state = state
        self.pool = PagePool(
            state.tables.pages,
            capacity.state.pages,
            settings.page,
            lambda old, new: copy_page(state, old, new),
        )
        fixed = capacity.sizes.kept if model.group.ranks > 1 else None
        self.store = KeptStore(self.pool, settings.kept_bytes, capacity.sizes.page, fixed)
        budget = PageBudget(self.pool, self.store, capacity.state.window, settings.reply_share)
        self.places = Places(state, self.pool, self.store, budget, settings, capacity.sizes)
        self.admission = Admission(self.places, budget, self._send_back)
        self._measured = MeasuredCosts()
        drafts = settings.drafts > 0 and model.weights.mtp is not None
        capturing = (model.device, model.group.host_ranks, settings.eager, recorder)
        self.steps: Captures[MainOutput] = Captures.on(*capturing)
        self.chains: Captures[Tensor] = Captures.on(*capturing)
        mtp = MtpGuesses(model, state, self._measured, self.chains) if drafts else None
        self.guesser = Guesser(settings, budget, costs or self._measured, mtp, source)
        self._budget = budget
        self._scheduler = Scheduler(settings, budget)
        self._runner = StepRunner(model, state, self.steps, None if mtp is None else mtp.guesses)
        # Guesses may stay on the device until the step that verifies them is under way. Ranks compare what
        # they run.
        self._leaves_open = model.group.ranks == 1
        self._drawing = Drawing(Shards.of(model), self._fail)
        self._mask_words = -(-model.config.vocab_size // 32)
        self._clock = clock
        self._watch = watch

    @property
    def idle(self) -> bool:
        """True when no request is running or waiting."""
        return not self.running and not self.admission.waiting

    def close(self) -> None:
        """Free the captured steps, which hold memory of the device."""
        self.steps.close()
        self.chains.close()

    def add(self, lane: Lane) -> None:
        """Queue a lane."""
        self.admission.add(lane)

    @torch.inference_mode()
    def step(self) -> bool:
        """Cancel, admit, and run the network once; False when there was nothing to do."""
        self._cancel()
        waiting = list(self.admission.waiting)
        self.admission.admit(self.running)
        for lane in waiting:
            if lane.slot >= 0 and not lane.moments.admitted:
                lane.moments.admitted = self._clock()
        if any(lane.request.grammar is not None for lane in self.running):
            self._settle()
        for lane in list(self.running):
            self._look_ahead(lane)
        parts = self._scheduler.parts(self.running)
        if parts:
            self._run(parts)
        elif self.running:
            # Every lane waits for a page that another holds: the latest one runs again later.
            self._send_back(max(self.running, key=turn))
        return bool(parts) or bool(self.running)

    def end(self, lane: Lane, reason: FinishReason, error: str | None = None) -> None:
        """End a lane, wherever it is, and tell its reader."""
        if lane.reply.finish is None:
            lane.reply.end(reason)
        if lane.slot >= 0:
            self.places.leave(lane)
            self.running.remove(lane)
        else:
            self.admission.waiting.remove(lane)
        lane.moments.ended = self._clock()
        self._tell(lane)
        usage = self.counters.finish(lane, reason)
        lane.handle.deliver(Finished(reason, usage, error, lane.reply.matched))

    def _fail(self, lane: Lane, error: Exception) -> None:
        LOG.error("request %s failed: %s", lane.request.id, error, exc_info=_trace(error))
        self.end(lane, "error", str(error) or type(error).__name__)

    def _cancel(self) -> None:
        for lane in [*self.running, *self.admission.waiting]:
            if lane.handle.cancelled:
                self.end(lane, "cancelled")

    def _send_back(self, lane: Lane) -> None:
        """Take a lane's place: it waits again, and runs what it has written again before it goes on."""
        LOG.info("request %s gives up its place at token %d", lane.request.id, lane.length)
        self.places.leave(lane)
        self.running.remove(lane)
        self.counters.sent_back += 1
        self.admission.add(lane)

    def _look_ahead(self, lane: Lane) -> None:
        if lane.request.grammar is None or lane.replay_left:
            return
        try:
            lane.drafts, lane.masks = lane.reply.look_ahead(lane.drafts, self._mask_words)
        except Exception as error:  # a grammar is the request's own; nobody else may suffer from it
            self._fail(lane, error)

    def _run(self, parts: Sequence[Part]) -> None:
        self.step_lanes = tuple(part.lane.request.id for part in parts)
        self.step_began = begin = self._clock()
        try:
            output = self._runner.run(parts, lambda: self._settle(parts))
            if self._settle(parts, running=True):
                begin = self._clock()
            hidden = output.hidden
            drawn = self._drawing.of(output, [part for part in parts if part.logits])
            if all(part.recurrent for part in parts):
                rows = sum(len(part.tokens) for part in parts)
                self._measured.steps.record(rows, self._clock() - begin)
            kept = [self._advance(part, hidden, *drawn.get(id(part), (None, None))) for part in parts]
            self._runner.commit(parts, kept)
            if self._watch is not None:
                self._watch(list(zip(parts, kept, strict=True)))
            self._guess(parts)
            if not self._leaves_open:
                self._settle()
            self._own(hidden, parts)
            self._keep(hidden, parts)
        except Exception as error:  # whatever the network's failure is, the engine goes on
            self._find_culprit([part for part in parts if part.lane.slot >= 0], error)
        self.counters.steps += 1
        self.step_began, self.step_lanes = 0.0, ()

    def _settle(self, parts: Sequence[Part] = (), *, running: bool = False) -> bool:
        """Let all guesses be known, also in `parts`; False if they were. Of those not `running` rows end
        before what could not be guessed."""
        if not self.guesser.settle():
            return False
        for lane in self.running:
            if not running and min(lane.drafts, default=0) < 0:
                del lane.drafts[next(place for place, token in enumerate(lane.drafts) if token < 0) :]
        for part in parts:
            if part.verifies:
                part.tokens[1:] = part.lane.drafts[: len(part.tokens) - 1]
                part.logits = len(part.tokens)
        return True

    def _find_culprit(self, parts: Sequence[Part], error: Exception) -> None:
        """A step failed: fail the lane that was alone in it, else let each run again, alone past this
        point."""
        self.counters.failed_steps += 1
        if len(parts) == 1:
            self._fail(parts[0].lane, error)
            return
        again = "a step of %s failed, each runs again alone: %s"
        LOG.error(again, self.step_lanes, error, exc_info=_trace(error))
        for part in parts:
            part.lane.suspect = part.end
            self._send_back(part.lane)

    def _advance(self, part: Part, hidden: Tensor, logits: Tensor | None, drawn: Sequence[int] | None) -> int:
        """Commit a part's rows, and give its lane what was drawn; how many rows stay."""
        lane, kept = part.lane, 0
        if lane.slot < 0:
            return kept
        try:
            kept = self._commit(part, hidden, logits, drawn)
            self._follow(part, hidden, kept)
            if lane.reply.finish is not None and not lane.prompt_left:
                self.end(lane, lane.reply.finish)
                return kept
            if lane.done >= lane.suspect:
                lane.suspect = 0
            self._budget.shrink(lane)
            self._tell(lane)
        except Exception as error:
            self._fail(lane, error)
        return kept

    def _commit(self, part: Part, hidden: Tensor, logits: Tensor | None, drawn: Sequence[int] | None) -> int:
        """Rows of the part that stay."""
        lane = part.lane
        if drawn is not None and part.verifies:
            taken, right = take(lane, logits, drawn)
            self.guesser.record(lane, right)
            lane.done += taken
            return taken
        lane.done = part.end
        if not part.recurrent and lane.request.prompt_logprobs is not None and not lane.prompt_told:
            tell_prompt(part, self._runner.prompt_logits(hidden, part), lane.request.prompt_logprobs)
        if drawn is not None:
            take(lane, logits, drawn)
        if not lane.prompt_left and not lane.moments.first_token:
            lane.moments.first_token = self._clock()
        return len(part.tokens)

    def _follow(self, part: Part, hidden: Tensor, kept: int) -> None:
        """Put rows aside for the MTP layer."""
        lane = part.lane
        if not self.guesser.follows(lane):
            lane.unabsorbed = Unabsorbed(lane.done)
            return
        lane.unabsorbed.add(part.position, Stretch(hidden, part.rows.start, part.rows.start + kept))

    def _guess(self, parts: Sequence[Part]) -> None:
        prompts = [part.lane for part in parts if part.lane.slot >= 0 and part.lane.prompt_left]
        stepped = [part.lane for part in parts if part.lane.slot >= 0 and not part.lane.prompt_left]
        replaying = [lane for lane in stepped if not lane.writing]
        self.guesser.run([lane for lane in stepped if lane.writing], prompts + replaying)

    def _own(self, hidden: Tensor, parts: Sequence[Part]) -> None:
        """What the MTP layer did not take may wait for long: it must not lie in the step's own memory."""
        waiting = [part for part in parts if part.recurrent and part.lane.unabsorbed.rows]
        if waiting:
            # The rows that write come first in a step, those of prompts are not kept along.
            own = hidden[: max(part.rows.stop for part in waiting)].clone()
            for part in waiting:
                rows = part.lane.unabsorbed.rows
                rows[-1] = rows[-1]._replace(step=own)

    def _keep(self, hidden: Tensor, parts: Sequence[Part]) -> None:
        for part in parts:
            lane = part.lane
            if lane.slot >= 0 and lane.points and lane.points[-1].position == lane.done:
                follows = self.guesser.follows(lane)
                self.places.keep(lane, hidden[part.rows.stop - 1] if follows else None)

    def _tell(self, lane: Lane) -> None:
        for event in lane.reply.events():
            lane.handle.deliver(event)


def _trace(error: Exception) -> Exception | None:
    """What the log shows the traceback of. The engine stops for a lost rank and shows where, once."""
    return None if isinstance(error, RankLostError) else error
