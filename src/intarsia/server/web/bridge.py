"""From the engine's thread to the event loop: the events of the replies of one request."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Literal

from intarsia.engine.events import EngineLike, Event, Finished, Handle
from intarsia.engine.requests import Request

# Events of a cancelled request come within a step; this bounds the wait for an engine that is stuck.
LEAVE_SECONDS = 30.0

Item = tuple[int, Event, float]
"""Index of the reply, event, moment it happened."""


class Bridge:
    """Submits requests and hands their events to one reader on the event loop."""

    def __init__(self) -> None:
        self.left: Literal["", "client", "time"] = ""
        """Why nobody reads any more."""
        self._loop = asyncio.get_running_loop()
        self._items: list[Item] = []
        self._ready = asyncio.Event()
        self._handles: list[Handle] = []

    def submit(self, engine: EngineLike, requests: Sequence[Request]) -> None:
        """Submit all requests, or none: the refusal of one takes the others back. From any thread."""
        try:
            for index, request in enumerate(requests):
                self._handles.append(engine.submit(request, partial(self._deliver, index)))
        except BaseException:
            self.cancel()
            raise
        if self.left:
            self.cancel()

    def cancel(self, index: int | None = None) -> None:
        """End one reply, or all; their last events still come."""
        for handle in self._handles if index is None else [self._handles[index]]:
            handle.cancel()

    def leave(self, why: Literal["client", "time"]) -> None:
        """End everything: the client has left, or its time is up."""
        self.left = self.left or why
        self.cancel()
        self._ready.set()

    async def batches(self, patience: float) -> AsyncIterator[list[Item]]:
        """Lists of all events since the last list; an empty one after `patience` seconds of nothing.

        Ends after the last event of every reply.
        """
        going = len(self._handles)
        deadline: float | None = None
        while going:
            if self.left and deadline is None:
                deadline = time.monotonic() + LEAVE_SECONDS
            if deadline is not None and time.monotonic() > deadline:
                return
            if not self._items:
                try:
                    async with asyncio.timeout(patience):
                        await self._ready.wait()
                except TimeoutError:
                    yield []
                    continue
            self._ready.clear()
            batch, self._items = self._items, []
            going -= sum(isinstance(event, Finished) for _, event, _ in batch)
            if batch:
                yield batch

    def _deliver(self, index: int, event: Event) -> None:
        """In the engine's thread. Raises once the loop has ended, which cancels the request."""
        self._loop.call_soon_threadsafe(self._put, (index, event, time.monotonic()))

    def _put(self, item: Item) -> None:
        self._items.append(item)
        self._ready.set()
