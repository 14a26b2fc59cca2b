"""How neighbours find each other: a rank listens towards the one before it and calls the one after it."""

import errno
import json
import socket
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass

from intarsia.core.errors import UsageError, Violation
from intarsia.groups.errors import RankMissingError, RanksDifferError, RendezvousError
from intarsia.groups.ring.frames import HEADER_BYTES, Header, Kind, unpack
from intarsia.groups.ring.line import hang_up
from intarsia.groups.ring.route import Side

_AGAIN = 0.1
_HANG_UP = 0.5
_LONGEST_HELLO = 256
_PATIENCE_WITH_A_CALLER = 5.0


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Where a rank's neighbours are, as it reaches them; None at the ends of a line.

    The one before is called from at the address this machine has towards it; the one after listens.
    """

    prev: tuple[str, int] | None
    next: tuple[str, int] | None


def neighbours(text: str, port: int) -> Neighbours:
    """The neighbours of `PREV,NEXT`, each HOST or HOST:PORT ([HOST]:PORT for IPv6), or empty.

    Raises UsageError.
    """
    parts = text.split(",")
    if len(parts) != 2 or not any(part.strip() for part in parts):
        raise UsageError("ring", found=text, expected="PREV,NEXT: the neighbours' addresses")
    first, second = (_address(part.strip(), port) for part in parts)
    return Neighbours(first, second)


def _address(text: str, port: int) -> tuple[str, int] | None:
    if not text:
        return None
    host, given = text, ""
    if text.startswith("["):
        host, _, given = text[1:].partition("]")
        given = given.removeprefix(":")
    elif text.count(":") == 1:
        host, _, given = text.partition(":")
    if given and not (given.isdecimal() and 0 < int(given) < 65536):
        raise UsageError("ring", found=text, expected="an address such as 10.0.0.2 or 10.0.0.2:29551")
    return host, int(given) if given else port


def check_ends(rank: int, ranks: int, around: Neighbours) -> None:
    """Raise UsageError when a neighbour is missing that only the ends of a line may lack."""
    for side, address, end in (("before", around.prev, 0), ("after", around.next, ranks - 1)):
        if address is None and rank != end:
            raise UsageError(
                "ring",
                found=f"no rank {side} rank {rank} of {ranks}",
                expected=f"PREV,NEXT; only rank {end} may have none {side} it",
            )


def meet(rank: int, ranks: int, around: Neighbours, port: int, timeout: float) -> dict[Side, socket.socket]:
    """Connections to the neighbours.

    Raises RendezvousError (a port in use, an address that is not reached), RankMissingError (a neighbour
    that does not come in time) and RanksDifferError (one that was started with another count or place).
    """
    check_ends(rank, ranks, around)
    meeting = _Meeting(rank, ranks, time.monotonic() + timeout, timeout)
    listener = _listener(around.prev, port) if around.prev is not None else None
    waiting: dict[Side, Future[socket.socket]] = {}
    with ThreadPoolExecutor(2) as threads:
        try:
            if around.next is not None:
                waiting["next"] = threads.submit(meeting.call, *around.next)
            if listener is not None:
                waiting["prev"] = threads.submit(meeting.answer, listener)
            wait(waiting.values())
        finally:
            meeting.give_up()
            if listener is not None:
                listener.close()
    failures = [problem for future in waiting.values() if (problem := future.exception()) is not None]
    made = {side: future.result() for side, future in waiting.items() if future.exception() is None}
    if not failures:
        for connection in made.values():
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made
    # one that has the other neighbour's word is worth more than one that gave up because of it
    failures.sort(key=lambda problem: not isinstance(problem, RanksDifferError))
    for connection in made.values():
        _tell_lost(connection, rank, ranks, failures[0])
        hang_up(connection, _HANG_UP)
    raise failures[0]


class _Meeting:
    """Both handshakes of one rank."""

    def __init__(self, rank: int, ranks: int, deadline: float, timeout: float) -> None:
        self._rank, self._ranks = rank, ranks
        self._deadline, self._timeout = deadline, timeout
        self._refused = threading.Event()

    def give_up(self) -> None:
        """End both handshakes soon."""
        self._refused.set()

    def call(self, host: str, port: int) -> socket.socket:
        """Call the rank after this one until it answers."""
        wanted, last = (self._rank + 1) % self._ranks, "no answer"
        while self._going():
            connection = None
            try:
                left = max(_AGAIN, self._deadline - time.monotonic())
                connection = socket.create_connection((host, port), timeout=left)
                if connection.getsockname() != connection.getpeername():  # a call may reach itself
                    _say_hello(connection, self._rank, self._ranks)
                    self._check(_hear_hello(connection, left), wanted)
                    return connection
            except socket.gaierror as error:
                raise RendezvousError(
                    f"{host}:{port}", found=str(error), expected="the address of a neighbour"
                ) from None
            except (OSError, EOFError, ValueError) as error:
                last = str(error) or "the connection was closed"
            except RanksDifferError:
                if connection is not None:
                    connection.close()
                raise
            if connection is not None:
                connection.close()
            time.sleep(_AGAIN)
        raise self._missing(wanted, f"nobody at {host}:{port} in {self._timeout:g} s ({last})")

    def answer(self, listener: socket.socket) -> socket.socket:
        """Wait for the rank before this one to call."""
        wanted = (self._rank - 1) % self._ranks
        listener.settimeout(_AGAIN)
        while self._going():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            try:
                told = _hear_hello(connection, _PATIENCE_WITH_A_CALLER)
                _say_hello(connection, self._rank, self._ranks)
            except (OSError, EOFError, ValueError):
                connection.close()  # somebody else's call
                continue
            try:
                self._check(told, wanted)
            except RanksDifferError:
                connection.close()
                raise
            return connection
        host, port = listener.getsockname()[:2]
        raise self._missing(wanted, f"no call from it at {host}:{port} in {self._timeout:g} s")

    def _going(self) -> bool:
        return time.monotonic() < self._deadline and not self._refused.is_set()

    def _check(self, told: Mapping[str, int], wanted: int) -> None:
        found = []
        if told["ranks"] != self._ranks:
            each = f"{self._ranks} on rank {self._rank}, {told['ranks']} on rank {told['rank']}"
            found.append(Violation("ranks-differ", "tp", each, "the same on all ranks"))
        elif told["rank"] != wanted:
            each = f"rank {told['rank']}"
            found.append(Violation("ranks-differ", f"neighbour of rank {self._rank}", each, f"rank {wanted}"))
        if found:
            self._refused.set()
            raise RanksDifferError("ring", found)

    def _missing(self, rank: int, found: str) -> RankMissingError:
        return RankMissingError(
            f"rank {rank}",
            found=found,
            expected=f"{self._ranks} ranks",
            action="start the ranks that are missing, with the same --tp on each",
        )


def _listener(towards: tuple[str, int], port: int) -> socket.socket:
    """A listener at the address this machine has towards a neighbour."""
    where = towards[0]
    try:
        family, _, _, _, target = socket.getaddrinfo(*towards, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # sends nothing
            own = probe.getsockname()[0]
        where = f"{own}:{port}"
        return socket.create_server((own, port), family=family, backlog=16)
    except OSError as error:
        in_use = error.errno == errno.EADDRINUSE
        raise RendezvousError(
            where,
            found="a port in use" if in_use else str(error),
            expected="a free port to listen at" if in_use else "a neighbour that can be reached",
            action="choose another --master-port" if in_use else "look at --ring and at the links",
        ) from None


def _say_hello(connection: socket.socket, rank: int, ranks: int) -> None:
    payload = json.dumps({"rank": rank, "ranks": ranks}).encode()
    connection.sendall(Header(Kind.HELLO, 1, rank, 0, len(payload)).packed() + payload)


def _hear_hello(connection: socket.socket, timeout: float) -> dict[str, int]:
    connection.settimeout(timeout)
    header = unpack(_exactly(connection, HEADER_BYTES))
    if header.kind is not Kind.HELLO or header.length > _LONGEST_HELLO:
        raise ValueError("no greeting of a rank")
    told = json.loads(_exactly(connection, header.length))
    return {"rank": int(told["rank"]), "ranks": int(told["ranks"])}


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return data


def _tell_lost(connection: socket.socket, rank: int, ranks: int, problem: BaseException) -> None:
    """Tell those this rank did reach why it gives up."""
    culprit = getattr(problem, "where", "")
    number = int(culprit.removeprefix("rank ")) if culprit.startswith("rank ") else rank
    text = getattr(problem, "found", "") or str(problem)
    payload = json.dumps({"culprit": number, "text": text}).encode()
    with suppress(OSError):
        connection.sendall(Header(Kind.LOST, ranks - 1, rank, 0, len(payload)).packed() + payload)
