"""The engine over several ranks: rank 0 takes requests, all ranks do the same steps.

What decides a step is what arrived and who left, and nothing else: no clock takes part. Rank 0 writes both
down before every step, where the other ranks read it. They wait there without turning a core while there is
nothing to do. So page tables, kept states and drafts agree by construction; a hash of them is compared at
every step.
"""

import json
import logging
import os
import signal
from collections import deque
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any, Protocol

import msgspec
from xxhash import xxh64_intdigest

from intarsia.core.config import SamplingSettings
from intarsia.core.errors import IntarsiaError
from intarsia.engine.engine import Engine
from intarsia.engine.errors import RequestError
from intarsia.engine.events import Event, Handle, OnEvent
from intarsia.engine.lanes.costs import Costs, MeasuredCosts
from intarsia.engine.lanes.guesser import GuessSource
from intarsia.engine.lanes.lane import Lane
from intarsia.engine.loop import Watch
from intarsia.engine.requests import Grammar, Penalties, Request, Thinking
from intarsia.engine.settings import StreamSettings
from intarsia.engine.text.reply import Pieces
from intarsia.groups.agreement import await_entry
from intarsia.groups.exchanging import RankGroup
from intarsia.models.glm5_next.model import Glm5NextModel

LOG = logging.getLogger(__name__)
KEPT_MESSAGES = 64
"""No rank is ever that many steps behind: a step with rows has exchanges."""


class _StepHandle(Handle):
    """A request whose end is only seen between steps, by all ranks at once."""

    def __init__(self, reader: Handle | None, request: Request) -> None:
        super().__init__(request)
        self.reader = reader

    def deliver(self, event: Event) -> None:
        """Pass it on to the one who asked, if that is on this rank."""
        if self.reader is not None:
            self.reader.deliver(event)


class Grammars(Protocol):
    """How grammars get to the other ranks: as the text they were made from. Each rank follows its own."""

    def written(self, grammar: Grammar) -> list[str]:
        """The words that `read` makes it from."""
        ...

    def read(self, words: Sequence[str]) -> Grammar:
        """The grammar at its beginning."""
        ...


class RankedEngine(Engine):
    """An engine on one of several ranks: `submit` on rank 0, `follow` on the others."""

    def __init__(
        self,
        model: Glm5NextModel,
        settings: StreamSettings,
        group: RankGroup,
        store: Any,
        *,
        end_ids: Collection[int] = (),
        pieces: Pieces | None = None,
        grammars: Grammars | None = None,
        costs: Costs | None = None,
        source: GuessSource | None = None,
        watch: Watch | None = None,
    ) -> None:
        """`store` is the key-value store the ranks met at; without `grammars` requests have none. The last
        three are `Engine`'s; `costs` and `source` must do the same on all ranks.
        """
        super().__init__(
            model,
            settings,
            end_ids=end_ids,
            pieces=pieces,
            # Costs that are never measured: equal on all ranks.
            costs=costs or MeasuredCosts(),
            source=source,
            watch=watch,
        )
        self._group = group
        self._store = store
        self._number = 0
        self._lanes: dict[int, Lane] = {}
        self._grammars = grammars
        group.when_lost(self._poke)

    @property
    def lost(self) -> IntarsiaError | None:
        """Why the ranks cannot go on together."""
        return self._group.failure

    def submit(self, request: Request, on_event: OnEvent | None = None) -> Handle:
        """Queue a request; RequestError for a grammar that the other ranks cannot be told."""
        if request.grammar is not None and self._grammars is None:
            raise RequestError(
                "grammar", found="an engine that cannot tell it to other ranks", expected="no grammar"
            )
        return super().submit(request, on_event)

    def step(self) -> bool:
        """Tell the others what arrived and who left, then do the step they do."""
        self._check_others()
        with self._wake:
            arrived, self._inbox = self._inbox, deque()
            self._poked = False
        for lane in arrived:
            lane.handle = _StepHandle(lane.handle, lane.request)
            self._lanes[lane.order] = lane
        gone = [order for order, lane in self._lanes.items() if self._aborting or _left(lane)]
        if not arrived and not gone and self.loop.idle:
            return False
        told = [[lane.order, encoded(lane.request, self._grammars)] for lane in arrived]
        self._tell({"arrived": told, "gone": gone})
        return self._together(arrived, gone)

    def follow(self) -> None:
        """Do the steps of rank 0 until it ends. Raises RankLostError when it is gone."""
        while True:
            message = self._next()
            if message.get("end"):
                return
            arrived = []
            for order, document in message["arrived"]:
                request = decoded(document, self._grammars)
                lane = self._intake.lane(_StepHandle(None, request), order)
                self._lanes[order] = lane
                arrived.append(lane)
            self._together(arrived, message["gone"])

    def _together(self, arrived: Collection[Lane], gone: Collection[int]) -> bool:
        for lane in arrived:
            self.loop.add(lane)
        for order in gone:
            self._lanes[order].handle.cancel()
        self._group.check_equal(self._described(), self._hash())
        worked = self.loop.step()
        self._check_others()  # the loop takes any failure for one of the network
        present = {lane.order for lane in [*self.loop.running, *self.loop.admission.waiting]}
        self._lanes = {order: lane for order, lane in self._lanes.items() if order in present}
        return worked

    def _check_others(self) -> None:
        if self._group.failure is not None:
            raise self._group.failure

    def _described(self) -> str:
        """The step and its streams, for whoever asks what this rank was doing."""
        streams = ", ".join(
            f"{lane.slot} ({lane.request.id[:24]}) at token {lane.done}" for lane in self.loop.running[:4]
        )
        more = f" and {len(self.loop.running) - 4} more" if len(self.loop.running) > 4 else ""
        return f"step {self._number}" + (f", stream {streams}{more}" if streams else "")

    def _hash(self) -> int:
        """What the next step follows from: every lane's place and length, drafts, pages and kept states."""
        loop = self.loop
        lanes = [
            (lane.order, lane.slot, lane.done, lane.length, lane.drafts)
            for lane in [*loop.running, *loop.admission.waiting]
        ]
        text = json.dumps([self._number, lanes, loop.pool.free, len(loop.store), loop.store.nbytes])
        table = loop.state.tables.pages.numpy().tobytes()
        return xxh64_intdigest(text.encode() + table)

    def _tell(self, message: dict[str, Any]) -> None:
        self._number += 1
        self._store.set(f"step/{self._number}", json.dumps(message))
        if self._number > KEPT_MESSAGES:
            self._store.delete_key(f"step/{self._number - KEPT_MESSAGES}")

    def _next(self) -> dict[str, Any]:
        self._number += 1
        problem: RuntimeError | None = None
        try:
            found: dict[str, Any] = json.loads(await_entry(self._store, f"step/{self._number}"))
            return found
        except RuntimeError as error:
            problem = error
        raise self._group.fail(problem)

    def _work(self) -> None:
        try:
            super()._work()
        except BaseException:
            # Nothing can be served any more: end the process as a signal would.
            os.kill(os.getpid(), signal.SIGTERM)
            raise
        finally:
            with suppress(RuntimeError):
                self._tell({"end": True})


def _left(lane: Lane) -> bool:
    handle = lane.handle
    return isinstance(handle, _StepHandle) and handle.reader is not None and handle.reader.cancelled


_SAMPLING = tuple(item.name for item in fields(SamplingSettings))


def encoded(request: Request, grammars: Grammars | None = None) -> dict[str, Any]:
    """A request as JSON values."""
    document = {
        item.name: msgspec.to_builtins(getattr(request, item.name), str_keys=True)
        for item in fields(Request)
        if item.name not in ("grammar", "sampling")
    }
    document["sampling"] = {name: getattr(request.sampling, name) for name in _SAMPLING}
    if request.grammar is not None and grammars is not None:
        document["grammar"] = grammars.written(request.grammar)
    return document


def decoded(document: dict[str, Any], grammars: Grammars | None = None) -> Request:
    """The request of such a document, checked as any other."""
    values = dict(document)
    if "grammar" in values and grammars is not None:
        values["grammar"] = grammars.read(values["grammar"])
    values["sampling"] = SamplingSettings(**values["sampling"])
    values["penalties"] = msgspec.convert(values["penalties"], Penalties)
    if values["thinking"] is not None:
        values["thinking"] = msgspec.convert(values["thinking"], Thinking)
    values["logit_bias"] = {int(token): bias for token, bias in values["logit_bias"].items()}
    for name in ("tokens", "stop", "stop_ids", "keep_at", "shared_at"):
        values[name] = tuple(values[name])
    return Request(**values)
