"""Connections: how many there may be, and how long each may take for its headers."""

import asyncio
import socket
from functools import partial
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from intarsia.server.errors import ApiError, InvalidRequestError, UnavailableError
from intarsia.server.settings import ServerSettings
from intarsia.server.web.refusals import error_body

LARGEST_HEAD = 32 << 10
_PROBE_AFTER, _PROBE_EVERY, _PROBES = 30, 10, 3


def _closing(status: str, error: ApiError) -> bytes:
    """A whole response before which there was no request that could be read."""
    body = error_body(error)
    headers = {"content-type": "application/json", "connection": "close", "content-length": str(len(body))}
    lines = [f"HTTP/1.1 {status}", *(f"{k}: {v}" for k, v in {**headers, **error.headers}.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


_FULL = _closing(
    "503 Service Unavailable",
    UnavailableError("Too many connections are open.", code="too_many_connections", retry_after=5),
)


class Connection(H11Protocol):
    """uvicorn's protocol with limits on the number of connections and on slow or silent clients."""

    def __init__(
        self,
        settings: ServerSettings,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, {**app_state, "connection": self}, _loop)
        self._settings = settings
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        _watch_peer(transport.get_extra_info("socket"), self._settings)
        if len(self.connections) > self._settings.max_connections:
            transport.write(_FULL)
            transport.close()
            return
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_head_timer()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self._head_timer is None and self.conn.their_state is h11.IDLE:
            self._head_timer = self.loop.call_later(self._settings.header_timeout, self._head_late)
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._unset_head_timer()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP in the same envelope as everything else, and close."""
        self.transport.write(_closing("400 Bad Request", InvalidRequestError(msg, code="invalid_http")))
        self.transport.close()

    def abort(self) -> None:
        """Close at once; what is unsent is dropped."""
        self.transport.abort()

    def _unset_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        """The headers did not arrive in time."""
        self._head_timer = None
        if not self.transport.is_closing():
            self.send_400_response("The headers did not arrive in time.")


def connections(settings: ServerSettings) -> Any:
    """The protocol class uvicorn makes an instance of for every connection."""
    return partial(Connection, settings)


def _watch_peer(sock: socket.socket | None, settings: ServerSettings) -> None:
    """Let the kernel find peers that vanished without a word, or stopped reading."""
    if sock is None or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", _PROBE_AFTER),
        ("TCP_KEEPINTVL", _PROBE_EVERY),
        ("TCP_KEEPCNT", _PROBES),
        ("TCP_USER_TIMEOUT", int(settings.write_timeout * 1000)),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
