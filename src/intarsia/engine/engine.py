"""The engine: one thread that owns a model and serves many requests at once."""

import logging
import threading
import time
from collections import deque
from collections.abc import Collection

from intarsia.engine.errors import EngineClosedError, QueueFullError
from intarsia.engine.events import EngineStats, Handle, OnEvent
from intarsia.engine.graphs.capture import Recorder
from intarsia.engine.intake import Intake
from intarsia.engine.lanes.costs import Costs
from intarsia.engine.lanes.guesser import GuessSource
from intarsia.engine.lanes.lane import Lane
from intarsia.engine.loop import Clock, StepLoop, Watch
from intarsia.engine.requests import Request
from intarsia.engine.settings import StreamSettings
from intarsia.engine.sizes import Capacity, plan_capacity
from intarsia.engine.text.reply import Pieces
from intarsia.models.glm5_next.model import Glm5NextModel

LOG = logging.getLogger(__name__)
LONGEST_RETRY = 60


class Engine:
    """Serves requests on one model. `submit`, `stats` and `close` may be called from any thread.

    `start` begins a thread that works while there is work. Without it, `step` does one step at a time in the
    caller's thread, which is how tests and checks drive an engine.
    """

    def __init__(
        self,
        model: Glm5NextModel,
        settings: StreamSettings,
        *,
        end_ids: Collection[int] = (),
        pieces: Pieces | None = None,
        costs: Costs | None = None,
        source: GuessSource | None = None,
        clock: Clock = time.monotonic,
        watch: Watch | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """Allocate the state of all streams.

        `end_ids` are the model's end tokens, `pieces` its tokenizer (None: replies are token ids alone);
        `costs`, `source` and `recorder` replace measured times, the engine's own guesses and the device's way
        of capturing steps. Raises CapacityError when the settings do not fit.
        """
        self.settings = settings = settings.on(model.device.type)
        self.capacity: Capacity = plan_capacity(
            model.config, settings, model.dtype, model.latents, ranks=model.group.ranks
        )
        self.loop = StepLoop(
            model,
            settings,
            self.capacity,
            costs=costs,
            source=source,
            clock=clock,
            watch=watch,
            recorder=recorder,
        )
        self._intake = Intake(
            settings,
            window=self.capacity.state.window,
            vocab_size=model.config.vocab_size,
            device=model.device,
            end_ids=end_ids,
            pieces=pieces,
        )
        self._clock = clock
        self._wake = threading.Condition()
        self._inbox: deque[Lane] = deque()
        self._order = 0
        self._closing = False
        self._aborting = False
        self._poked = False
        self._thread: threading.Thread | None = None
        self._failure = ""
        self._stopped_by: BaseException | None = None
        LOG.info(
            "%d streams, a window of %d tokens, %d pages of %d, latents %s; %.1f MiB, %.2f more a kept state",
            settings.streams,
            self.window,
            self.capacity.state.pages,
            settings.page,
            model.latents if model.latents != "auto" else str(model.dtype).removeprefix("torch."),
            self.capacity.total / 2**20,
            self.capacity.sizes.kept / 2**20,
        )

    @property
    def window(self) -> int:
        """Most tokens of prompt and reply together."""
        return self.capacity.state.window

    @property
    def alive(self) -> bool:
        """True while the engine takes requests."""
        return not self._closing and not self._failure

    def start(self) -> "Engine":
        """Begin the engine's thread."""
        self._thread = threading.Thread(target=self._serve, name="intarsia-engine", daemon=True)
        self._thread.start()
        return self

    def submit(self, request: Request, on_event: OnEvent | None = None) -> Handle:
        """Queue a request.

        Raises RequestError (a field the model cannot serve), TooLongError (more tokens than the window
        holds), QueueFullError (try again later) or EngineClosedError.
        """
        self._intake.check(request)
        handle = Handle(request, on_event, _wake=self._poke)
        with self._wake:
            order, self._order = self._order, self._order + 1
        # Hashing a long prompt takes a while: in the caller's thread, and not under the lock.
        lane = self._intake.lane(handle, order)
        lane.moments.queued = self._clock()
        with self._wake:
            if self._closing or self._failure:
                raise EngineClosedError(
                    "engine", found=self._failure or "an engine that is closing", expected="a running one"
                )
            waiting = len(self._inbox) + len(self.loop.admission.waiting)
            if waiting >= self.settings.queue:
                raise QueueFullError(waiting, self._retry_after(waiting))
            self._inbox.append(lane)
            self._wake.notify_all()
        return handle

    def step(self) -> bool:
        """Take in what was submitted and do one step; False when there was nothing to do."""
        with self._wake:
            arrived, self._inbox = self._inbox, deque()
            self._poked = False
        for lane in arrived:
            self.loop.add(lane)
        if self._aborting:
            for lane in [*self.loop.running, *self.loop.admission.waiting]:
                lane.handle.cancel()
        return self.loop.step()

    def stats(self) -> EngineStats:
        """A snapshot of counters and gauges."""
        loop, counters, store = self.loop, self.loop.counters, self.loop.store
        overall = loop.guesser.overall
        began = loop.step_began
        return EngineStats(
            running=len(loop.running),
            waiting=len(self._inbox) + len(loop.admission.waiting),
            streams=self.settings.streams,
            window=self.window,
            pages=loop.pool.pages,
            pages_free=loop.pool.free,
            page_tokens=self.settings.page,
            kept_states=len(store),
            kept_bytes=store.nbytes,
            kept_budget=store.budget,
            kept_hits=store.counts.hits,
            kept_misses=store.counts.misses,
            kept_evicted=store.counts.evicted,
            kept_refused=store.counts.refused,
            requests_finished={str(reason): count for reason, count in counters.finished.items()},
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            completion_tokens=counters.completion_tokens,
            steps=counters.steps,
            drafted=tuple(overall.drafted),
            accepted=tuple(overall.accepted),
            copied=overall.copied,
            copied_accepted=overall.copied_accepted,
            prefill_seconds=counters.prefill_seconds,
            decode_seconds=counters.decode_seconds,
            waiting_for=loop.admission.waiting_for,
            step_age_seconds=self._clock() - began if began else 0.0,
            step_streams=loop.step_lanes,
        )

    def close(self, *, drain: bool = True, timeout: float | None = None) -> None:
        """Refuse new requests; finish those there are if `drain`, else cancel them.

        Returns when the thread has ended or `timeout` seconds are over. A second call without `drain` ends a
        drain. Without a thread the caller's own steps do the work.
        """
        with self._wake:
            self._closing = True
            self._aborting |= not drain
            self._poked = True
            self._wake.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)
            if not self._thread.is_alive():
                self.loop.close()

    def _poke(self) -> None:
        with self._wake:
            self._poked = True
            self._wake.notify_all()

    def _retry_after(self, waiting: int) -> int:
        """Seconds until a place may be free, from how long requests took so far."""
        counters = self.loop.counters
        finished = sum(counters.finished.values())
        each = (counters.prefill_seconds + counters.decode_seconds) / finished if finished else 1.0
        return min(LONGEST_RETRY, max(1, round(each * waiting / self.settings.streams)))

    def _serve(self) -> None:
        try:
            self._work()
        except BaseException as error:
            # What ended the work is in the log by then; the thread's own words would say it again, as plain
            # text. What went wrong after that is not.
            if error is not self._stopped_by:
                raise

    def _work(self) -> None:
        try:
            while self._await_work():
                self.step()
        except BaseException as error:  # nobody else would tell the readers that wait
            self._stopped_by = error
            LOG.critical("the engine stopped: %s", error, exc_info=error)
            self._abandon(error)
            raise

    def _await_work(self) -> bool:
        """Sleep while there is nothing to do; False when the engine is to end."""
        with self._wake:
            while not self._inbox and not self._poked and self.loop.idle and not self._closing:
                self._wake.wait()
            return not (self._closing and not self._inbox and self.loop.idle)

    def _abandon(self, error: BaseException) -> None:
        with self._wake:
            self._failure = str(error) or type(error).__name__
            arrived, self._inbox = self._inbox, deque()
        for lane in arrived:
            self.loop.add(lane)
        for lane in [*self.loop.running, *self.loop.admission.waiting]:
            self.loop.end(lane, "error", f"the engine stopped: {self._failure}")
