"""A thread that names the step and its requests when a step of the engine takes too long."""

import logging
import threading

from intarsia.engine.events import EngineStats
from intarsia.server.observe.log import log
from intarsia.server.observe.metrics import Metrics
from intarsia.server.service import Service

INTERVAL = 1.0


class Watchdog:
    """Looks at the engine once a second, from outside the event loop and the engine's own thread."""

    def __init__(self, service: Service, metrics: Metrics, *, interval: float = INTERVAL) -> None:
        self.stalled = False
        self._service = service
        self._metrics = metrics
        self._interval = interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread; returns when it has ended."""
        self._stop.set()
        self._thread.join()

    def look(self, stats: EngineStats) -> None:
        """Judge one snapshot; a stall is told once, and so is its end."""
        late = stats.step_age_seconds > self._service.settings.stall_timeout
        if late and not self.stalled:
            self._metrics.stalls.inc()
            log(
                "step stalled",
                logging.ERROR,
                step=stats.steps,
                seconds=round(stats.step_age_seconds, 1),
                requests=list(stats.step_streams),
                running=stats.running,
                waiting=stats.waiting,
                waiting_for=stats.waiting_for,
            )
        elif self.stalled and not late:
            log("step went on", logging.WARNING, step=stats.steps)
        self.stalled = late

    def _run(self) -> None:
        while not self._stop.wait(self._interval):
            self.look(self._service.engine.stats())
