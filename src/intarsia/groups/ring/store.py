"""The ranks' key-value store without anybody who holds it: every rank has all entries."""

import atexit
from datetime import timedelta

from intarsia.groups.errors import LineError
from intarsia.groups.ring.frames import Kind
from intarsia.groups.ring.lines import FAREWELL, Lines
from intarsia.groups.ring.meet import Neighbours, meet
from intarsia.groups.ring.route import Route
from intarsia.groups.status import Tally

CLOSED = "ring/closed"


def open_ring(
    rank: int, ranks: int, around: Neighbours, port: int, status: Tally, timeout: float
) -> "RingStore":
    """Meet the neighbours; the store works over the lines to them at once. Raises what `meet` raises."""
    sockets = meet(rank, ranks, around, port, timeout)
    # Until all know whether the first and the last rank are joined, nothing goes that way.
    lines = Lines(sockets, Route(rank, ranks, closed=False), status, timeout)
    atexit.register(lines.close)
    store = RingStore(lines)
    if rank == 0:
        store.set(CLOSED, "yes" if around.prev is not None else "no")
    return store


class RingStore:
    """Entries are told to all ranks when they are set. The calls of torch's stores that are used here."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines

    def settle(self) -> None:
        """Take the shorter way round from here on, if there is one. Raises LineError."""
        route = self.lines.route
        self.lines.route = Route(route.rank, route.ranks, closed=self.get(CLOSED) == b"yes")

    def set(self, key: str, value: str) -> None:
        """Tell all ranks an entry. Raises LineError, as all calls do, when a rank is lost."""
        data = value.encode()
        with self.lines.arrived:
            self.lines.entries[key] = data
        self.lines.say(Kind.ENTRY, key.encode() + b"\0" + data)

    def get(self, key: str) -> bytes:
        """An entry, waited for."""
        self.wait([key], timedelta(seconds=self.lines.timeout))
        return self.lines.entries[key]

    def wait(self, keys: list[str], timeout: timedelta) -> None:
        """Sleep until these entries are there; TimeoutError when they do not come in time."""
        lines = self.lines

        def there() -> bool:
            return all(key in lines.entries for key in keys)

        patience = timeout.total_seconds()
        arrived = lines.wait(lambda: there() or bool(lines.ended), patience)
        if not arrived and lines.silent:
            # a rank that has said nothing yet still looks for its other neighbour, and will tell
            arrived = lines.wait(lambda: there() or bool(lines.ended), patience)
        if not arrived:
            raise TimeoutError(f"no {', '.join(keys)} in {patience:g} s")
        # Somebody left: what another one said may still be on its way.
        if not there() and not lines.wait(there, FAREWELL):
            gone = min(lines.ended)
            raise LineError("it has ended", gone, lines.states())

    def delete_key(self, key: str) -> bool:
        """Forget an entry on all ranks; True if there was one."""
        with self.lines.arrived:
            found = self.lines.entries.pop(key, None) is not None
        self.lines.say(Kind.DELETE, key.encode())
        return found
