"""SIGUSR1: every thread's stack, every task, and what the engine is doing, to stderr and the log."""

import asyncio
import faulthandler
import signal
import sys

from intarsia.server.observe.log import log
from intarsia.server.service import Service


def dump_on_signal(loop: asyncio.AbstractEventLoop, service: Service) -> None:
    """Dump on SIGUSR1. The stacks are written even while the event loop is stuck."""
    loop.add_signal_handler(signal.SIGUSR1, _dump, service)
    # chain: the loop's own handler still learns of the signal, for the part that needs the loop
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True, chain=True)


def _dump(service: Service) -> None:
    tasks = [str(task.get_coro()) for task in asyncio.all_tasks()]
    stats = service.engine.stats()
    log(
        "dump",
        tasks=tasks[:200],
        running=stats.running,
        waiting=stats.waiting,
        waiting_for=stats.waiting_for,
        step=stats.steps,
        step_seconds=round(stats.step_age_seconds, 3),
        step_requests=list(stats.step_streams),
        pages_free=stats.pages_free,
    )
