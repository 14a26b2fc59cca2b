"""One HTTP request and its response, on top of ASGI."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any

from intarsia.server.errors import BodyTimeoutError, BodyTooLargeError, MediaTypeError
from intarsia.server.observe.record import Record
from intarsia.server.settings import ServerSettings

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

DISCARD_SECONDS = 5.0


class ClientGoneError(Exception):
    """The client has left, or reads so slowly that it counts as gone; nobody is there to be told."""


class Exchange:
    """Reads the body within limits, writes the response within time, and knows how far both have come."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, settings: ServerSettings) -> None:
        self.headers: Mapping[str, str] = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        self.header_count = len(scope["headers"])
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        client = scope.get("client")
        self.record = Record(self.method, self.path[:200], client[0] if client else "")
        self.started = False
        self.done = False
        self._receive = receive
        self._send = send
        self._settings = settings
        self._complete = not self._has_body()
        self._read = 0
        self._connection = scope.get("state", {}).get("connection")

    def _has_body(self) -> bool:
        return self.headers.get("content-length", "0") != "0" or "transfer-encoding" in self.headers

    async def body(self) -> bytes:
        """The whole body.

        Raises MediaTypeError, BodyTooLargeError, BodyTimeoutError, or ClientGoneError when the client left.
        """
        kind = self.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise MediaTypeError("The body must be declared 'Content-Type: application/json'.")
        if self.headers.get("content-encoding", "identity") != "identity":
            raise MediaTypeError("Compressed bodies are not read.")
        self._check_size(int(self.headers.get("content-length", "0")))
        chunks = bytearray()
        try:
            async with asyncio.timeout(self._settings.body_timeout):
                while not self._complete:
                    chunks += await self._chunk()
                    self._check_size(len(chunks))
        except TimeoutError:
            raise BodyTimeoutError("The body did not arrive in time.") from None
        return bytes(chunks)

    def _check_size(self, size: int) -> None:
        most = self._settings.max_body_bytes
        if size > most:
            raise BodyTooLargeError(f"The body has more than {most:,} bytes.")

    async def _chunk(self) -> bytes:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        self._complete = not message.get("more_body", False)
        data: bytes = message.get("body", b"")
        self._read += len(data)
        return data

    async def departed(self) -> None:
        """Return when the client has left. Only once the body is complete."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def respond(
        self,
        status: int,
        content: bytes,
        kind: str,
        headers: Mapping[str, str] | None = None,
        *,
        close: bool = False,
    ) -> None:
        """Send a whole response.

        A body that was not read is read first, so that the connection can go on; with `close` it cannot, and
        nothing is waited for.
        """
        close = close or not await self._discard_body()
        await self._start(status, kind, {"content-length": str(len(content)), **(headers or {})}, close=close)
        await self._write(content, more=False)

    async def begin_stream(self) -> None:
        """Send the head of a stream of server-sent events."""
        # x-accel-buffering: proxies of the nginx family would hold events back otherwise
        extra = {"cache-control": "no-cache", "x-accel-buffering": "no"}
        await self._start(200, "text/event-stream; charset=utf-8", extra, close=False)

    async def write(self, content: bytes) -> None:
        """Send a part of a stream; ClientGoneError when it stays unread for too long."""
        await self._write(content, more=True)

    async def end_stream(self) -> None:
        """Send the end of a stream."""
        await self._write(b"", more=False)

    def abort(self) -> None:
        """Drop the connection with whatever is still unsent."""
        if self._connection is not None:
            self._connection.abort()

    async def _start(self, status: int, kind: str, headers: Mapping[str, str], *, close: bool) -> None:
        self.started = True
        self.record.status = status
        rows = [("content-type", kind), *headers.items()]
        if self.record.id:
            rows.append(("x-request-id", self.record.id))
        if close:
            rows.append(("connection", "close"))
        encoded = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in rows]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})

    async def _write(self, content: bytes, *, more: bool) -> None:
        try:
            async with asyncio.timeout(self._settings.write_timeout):
                await self._send({"type": "http.response.body", "body": content, "more_body": more})
        except TimeoutError:
            self.abort()
            raise ClientGoneError from None
        self.done = not more

    async def _discard_body(self) -> bool:
        """Read what is left of the body and forget it; False if there is too much of it."""
        if self._complete:
            return True
        if "expect" in self.headers and not self._read:
            return False  # the client waits to be told to go on, and is told otherwise
        most = self._read + self._settings.max_body_bytes
        try:
            async with asyncio.timeout(DISCARD_SECONDS):
                while not self._complete and self._read <= most:
                    await self._chunk()
        except TimeoutError:
            return False
        return self._complete
