"""One TCP connection to a neighbour: whole messages in and out, without ever waiting for the other end."""

import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from intarsia.groups.ring.frames import HEADER_BYTES, Header, unpack

_MOST_READ = 1 << 20


class Line:
    """Messages to and from one neighbour. `send` may be called by any thread, `read` and `flush` by one."""

    def __init__(self, connection: socket.socket, wake: Callable[[], None]) -> None:
        """`wake` is called when something is left to be flushed."""
        connection.setblocking(False)
        self.socket = connection
        self._wake = wake
        self._lock = threading.Lock()
        self._left: deque[memoryview] = deque()
        self._header = bytearray(HEADER_BYTES)
        self._read = 0
        self._current: Header | None = None
        self._payload = bytearray()

    @property
    def blocked(self) -> bool:
        """True while something is left to be flushed."""
        return bool(self._left)

    def send(self, header: Header, payload: bytes | bytearray | memoryview = b"") -> None:
        """Send what the connection takes now, and leave a copy of the rest. Raises OSError."""
        with self._lock:
            parts = [memoryview(header.packed()), memoryview(payload).cast("B")]
            sent = 0
            if not self._left:
                try:
                    sent = self.socket.sendmsg(parts)
                except BlockingIOError:
                    sent = 0
            for part in parts:
                skipped = min(sent, len(part))
                sent -= skipped
                if skipped < len(part):
                    # a copy: the sender may change its memory as soon as this returns
                    self._left.append(memoryview(bytes(part[skipped:])))
            blocked = bool(self._left)
        if blocked:
            self._wake()

    def flush(self) -> None:
        """Send more of what was left. Raises OSError."""
        with self._lock:
            while self._left:
                try:
                    sent = self.socket.send(self._left[0])
                except BlockingIOError:
                    return
                if sent < len(self._left[0]):
                    self._left[0] = self._left[0][sent:]
                else:
                    self._left.popleft()

    def read(self) -> list[tuple[Header, bytearray]]:
        """The messages that are now complete. Raises EOFError at the end, OSError, and ValueError."""
        complete: list[tuple[Header, bytearray]] = []
        taken = 0
        while taken < _MOST_READ:
            target = self._header if self._current is None else self._payload
            try:
                count = self.socket.recv_into(memoryview(target)[self._read :])
            except BlockingIOError:
                break
            if count == 0:
                if complete:
                    break  # what came before the end is worth hearing; it will be the end again
                raise EOFError
            taken += count
            self._read += count
            if self._read < len(target):
                continue
            self._read = 0
            if self._current is None:
                self._current = unpack(self._header)
                self._payload = bytearray(self._current.length)
                if self._payload:
                    continue
            complete.append((self._current, self._payload))
            self._current = None
        return complete


def hang_up(connection: socket.socket, seconds: float) -> None:
    """Close a connection whose last words are to be heard: closing one with something unread takes them
    back.
    """
    with suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            connection.settimeout(left)
            if not connection.recv(_MOST_READ):
                break
    connection.close()
