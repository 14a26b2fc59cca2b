"""A rank's lines to its neighbours: one thread that reads, passes on, and notices when somebody is gone.

Messages travel both ways round, each rank passing on what has further to go. Whatever comes is kept until
somebody asks for it, so no rank ever stops another one from sending.
"""

import json
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from intarsia.groups.errors import LineError
from intarsia.groups.ring.frames import Header, Kind
from intarsia.groups.ring.line import Line, hang_up
from intarsia.groups.ring.route import Route, Side, other
from intarsia.groups.status import Reading, Tally

BEAT = 1.0
"""Seconds between a rank's signs of life, or a quarter of the timeout if that is less."""
_NEWS = (Kind.BEAT, Kind.LOST, Kind.BYE)
LAST_WORDS = 0.2
"""Seconds in which ranks hear each other's last words after a loss."""
HANG_UP = 0.3
FAREWELL = 2.0
"""Seconds in which the lines are emptied when a rank leaves."""


class Lines:
    """What one rank hears and says. All methods may be called from any thread."""

    def __init__(
        self, sockets: Mapping[Side, socket.socket], route: Route, status: Tally, timeout: float
    ) -> None:
        """A neighbour that says nothing for `timeout` seconds counts as lost."""
        self.route, self.timeout = route, timeout
        self.arrived = threading.Condition()
        """Notified when anything came, or a rank was lost."""
        self.failure: LineError | None = None
        self.pieces: dict[int, dict[int, bytearray]] = {}
        """Parts of exchanges by number and rank, until they are taken."""
        self.entries: dict[str, bytes] = {}
        """The ranks' store."""
        self._status = status
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._lines = {side: Line(connection, self._wake) for side, connection in sockets.items()}
        self._heard = dict.fromkeys(self._lines, time.monotonic())
        self._readings: dict[int, Reading] = {}
        self._ended: set[int] = set()
        self._beat = min(BEAT, timeout / 4)
        self._leaving = False
        self._failed_at = 0.0
        self._notify: list[Callable[[], None]] = []
        self._thread = threading.Thread(target=self._work, name="intarsia-lines", daemon=True)
        self._thread.start()

    def say(self, kind: Kind, payload: bytes | memoryview = b"", number: int = 0) -> None:
        """Send a message to every other rank. Raises LineError when one of them is lost."""
        if self.failure is not None:
            raise self.described_failure()
        self._tell_all(kind, payload, number)

    def wait(self, ready: Callable[[], bool], timeout: float | None) -> bool:
        """Sleep until `ready` (called with `arrived` held) is true; False after `timeout` seconds.

        Raises LineError when a rank is lost and it is not.
        """
        with self.arrived:
            if self.arrived.wait_for(lambda: ready() or self.failure is not None, timeout) and ready():
                return True
        if self.failure is not None:
            raise self.described_failure()
        return False

    def described_failure(self) -> LineError:
        """Why nothing more is said or heard, with what all ranks were doing then."""
        time.sleep(max(0.0, self._failed_at + LAST_WORDS - time.monotonic()))
        failure = self.failure or LineError("nothing is lost")
        return LineError(str(failure), failure.culprit, self.states())

    def when_lost(self, act: Callable[[], None]) -> None:
        """Call `act` from a thread of its own as soon as a rank is lost and last words are heard."""
        with self.arrived:
            self._notify.append(act)
            late = self.failure is not None
        if late:
            act()

    def reading(self, rank: int) -> Reading | None:
        """What a rank last said of itself."""
        return self._status.read() if rank == self.route.rank else self._readings.get(rank)

    @property
    def ended(self) -> frozenset[int]:
        """Ranks that have left in good order; all they said before has come."""
        return frozenset(self._ended)

    @property
    def silent(self) -> set[int]:
        """Ranks that have not said anything."""
        return set(range(self.route.ranks)) - {self.route.rank} - self._readings.keys() - self._ended

    def states(self) -> str:
        """What every rank last said of itself."""
        known = [(rank, self.reading(rank)) for rank in range(self.route.ranks)]
        return "; ".join(f"rank {rank} {reading.doing if reading else 'starting'}" for rank, reading in known)

    def lose(self, culprit: int, text: str) -> LineError:
        """Count a rank as lost and tell the others; the error, or that of an earlier loss."""
        self._report(culprit, text)
        return self.described_failure()

    def close(self) -> None:
        """Say goodbye, let what was said reach the neighbours, and end the lines."""
        if not self._leaving:
            self._tell_all(Kind.BYE)
            self._leaving = True
            self._wake()
            self._thread.join(FAREWELL)

    def _report(self, culprit: int, text: str) -> None:
        if self.failure is None:
            self._tell_all(Kind.LOST, json.dumps({"culprit": culprit, "text": text}).encode())
            self._fail(LineError(text, culprit))

    def _fail(self, failure: LineError) -> None:
        with self.arrived:
            if self.failure is not None:
                return
            self._say_beat()  # the last words, for everybody's message
            self._failed_at = time.monotonic()
            self.failure = failure
            self.arrived.notify_all()
            acts = list(self._notify)

        def tell() -> None:
            self.described_failure()
            for act in acts:
                act()

        threading.Thread(target=tell, name="intarsia-lost", daemon=True).start()

    def _tell_all(self, kind: Kind, payload: bytes | memoryview = b"", number: int = 0) -> None:
        for side, hops in self.route.hops.items():
            # a neighbour hears how this rank fares on every line between them
            hops = max(hops, int(kind in _NEWS))
            if hops:
                self._pass_on(side, Header(kind, hops, self.route.rank, number, len(payload)), payload)

    def _wake(self) -> None:
        with suppress(OSError):
            self._wake_write.send(b"w")

    def _pass_on(self, side: Side, header: Header, payload: bytes | bytearray | memoryview) -> None:
        line = self._lines.get(side)
        if line is not None:
            with suppress(OSError):  # the reading side notices, and says who is gone
                line.send(header, payload)

    def _work(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_read, selectors.EVENT_READ, None)
            for side, line in self._lines.items():
                selector.register(line.socket, selectors.EVENT_READ, side)
            next_beat, deadline = 0.0, 0.0
            while True:
                now = time.monotonic()
                if self._leaving:
                    deadline = deadline or now + FAREWELL
                    if now > deadline or not any(line.blocked for line in self._lines.values()):
                        break
                if now >= next_beat:
                    self._say_beat()
                    next_beat = now + self._beat
                    self._check_silence(now)
                for side, line in self._lines.items():
                    wanted = selectors.EVENT_WRITE if line.blocked else 0
                    selector.modify(line.socket, selectors.EVENT_READ | wanted, side)
                for key, events in selector.select(max(0.0, next_beat - now)):
                    self._serve(selector, key.data, events)
        for line in self._lines.values():
            hang_up(line.socket, HANG_UP)
        self._wake_read.close()
        self._wake_write.close()

    def _serve(self, selector: selectors.BaseSelector, side: Side | None, events: int) -> None:
        if side is None:
            self._wake_read.recv(4096)
            return
        line = self._lines[side]
        problem = ""
        try:
            if events & selectors.EVENT_WRITE:
                line.flush()
            for header, payload in line.read() if events & selectors.EVENT_READ else ():
                self._heard[side] = time.monotonic()
                self._take(side, header, payload)
        except EOFError:
            problem = "its line was closed"
        except (OSError, ValueError) as error:
            problem = f"the line to it failed: {error}"
        if problem:
            selector.unregister(line.socket)
            del self._lines[side]
            line.socket.close()
            neighbour = self.route.neighbour(side)
            if neighbour not in self._ended:
                self._report(neighbour, problem)

    def _take(self, side: Side, header: Header, payload: bytearray) -> None:
        if header.hops > 1:
            onward = Header(header.kind, header.hops - 1, header.source, header.number, header.length)
            self._pass_on(other(side), onward, payload)
        with self.arrived:
            match header.kind:
                case Kind.PIECE:
                    self.pieces.setdefault(header.number, {})[header.source] = payload
                    self._entered(header.source, header.number)
                case Kind.ENTRY:
                    key, _, value = bytes(payload).partition(b"\0")
                    self.entries[key.decode()] = value
                case Kind.DELETE:
                    self.entries.pop(payload.decode(), None)
                case Kind.BEAT:
                    self._readings[header.source] = Reading(*json.loads(payload))
                case Kind.BYE:
                    self._ended.add(header.source)
                case _:
                    pass
            self.arrived.notify_all()
        if header.kind is Kind.LOST:
            told = json.loads(payload)
            self._fail(LineError(told["text"], told["culprit"]))

    def _entered(self, rank: int, number: int) -> None:
        """A part of an exchange says how far a rank is, before its next sign of life does."""
        known = self._readings.get(rank) or Reading(0, 0, 0, "")
        if number > known.entered:
            self._readings[rank] = replace(known, entered=number, left=number - 1)

    def _say_beat(self) -> None:
        if self.failure is None:
            own = self._status.read()
            self._tell_all(Kind.BEAT, json.dumps([own.entered, own.left, own.signs, own.words]).encode())

    def _check_silence(self, now: float) -> None:
        for side in list(self._lines):
            silent = now - self._heard[side]
            neighbour = self.route.neighbour(side)
            # one that has said nothing yet still looks for its other neighbour, and will tell
            patience = self.timeout * (2 if neighbour not in self._readings else 1)
            if silent > patience and neighbour not in self._ended:
                self._report(
                    neighbour,
                    f"rank {self.route.rank} hears nothing from it for {silent:.1f} s: "
                    "it is stopped, or the line between them is down",
                )
