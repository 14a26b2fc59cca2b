"""A small HTTP client for streams of server-sent events, so that measuring needs no further library."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from intarsia.core.errors import IntarsiaError, UsageError

LARGEST_LINE = 16 << 20
LARGEST_BODY = 256 << 20


class ServerError(IntarsiaError):
    """A server that refused, failed or could not be reached. `status` is 0 without a response."""

    def __init__(self, where: str, *, found: str, status: int = 0) -> None:
        self.status = status
        super().__init__(where, found=found)


@dataclass(frozen=True, slots=True)
class Server:
    """Where a server is, and the key it wants."""

    host: str
    port: int
    path: str
    key: str | None = None

    @classmethod
    def of(cls, url: str, key: str | None = None) -> "Server":
        """From `http://host:port`, with or without the path `/v1`. Raises UsageError for anything else."""
        parts = urlsplit(url)
        if parts.scheme != "http" or not parts.hostname:
            raise UsageError("url", found=url, expected="http://HOST:PORT")
        return cls(parts.hostname, parts.port or 80, parts.path.rstrip("/").removesuffix("/v1"), key)

    async def get(self, path: str) -> Any:
        """The JSON of a GET. Raises ServerError."""
        return json.loads(b"".join([part async for part in self._exchange("GET", path, b"")]))

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """The events of a streamed POST as they come, without the last one. Raises ServerError."""
        rest = b""
        async for part in self._exchange("POST", path, json.dumps(body).encode()):
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                data = line.removeprefix(b"data:").strip()
                if not line.startswith(b"data:") or data == b"[DONE]":
                    continue
                event = json.loads(data)
                if "error" in event:
                    raise ServerError(path, found=str(event["error"].get("message"))[:300], status=200)
                yield event

    async def _exchange(self, method: str, path: str, body: bytes) -> AsyncIterator[bytes]:
        """The body of a response, part by part."""
        try:
            reader, writer = await asyncio.open_connection(self.host, self.port, limit=LARGEST_LINE)
        except OSError as error:
            raise ServerError(f"{self.host}:{self.port}", found=error.strerror or str(error)) from None
        try:
            writer.write(self._head(method, path, len(body)) + body)
            await writer.drain()
            status, headers = await _read_head(reader)
            parts = _parts(reader, headers)
            if status != 200:
                text = b"".join([part async for part in parts])
                raise ServerError(path, found=f"status {status}: {_message(text)}", status=status)
            async for part in parts:
                yield part
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            raise ServerError(path, found=f"a connection that ended: {error}") from None
        finally:
            writer.close()

    def _head(self, method: str, path: str, length: int) -> bytes:
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [
            f"{method} {self.path}{path} HTTP/1.1",
            f"Host: {host}:{self.port}",
            "Connection: close",
            "Accept: application/json, text/event-stream",
        ]
        if method == "POST":
            lines += ["Content-Type: application/json", f"Content-Length: {length}"]
        if self.key is not None:
            lines.append(f"Authorization: Bearer {self.key}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    status = (await reader.readline()).decode("latin-1").split(" ")
    if len(status) < 2 or not status[0].startswith("HTTP/1.") or not status[1].isdecimal():
        raise ValueError("no HTTP response")
    headers = {}
    while line := (await reader.readline()).decode("latin-1").strip():
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return int(status[1]), headers


async def _parts(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """The body in whichever of the three ways a response says where it ends."""
    if headers.get("transfer-encoding", "").lower() == "chunked":
        while size := int((await reader.readline()).partition(b";")[0], 16):
            yield await reader.readexactly(size)
            await reader.readexactly(2)
    elif "content-length" in headers:
        length = int(headers["content-length"])
        if length > LARGEST_BODY:
            raise ValueError(f"a body of {length:,} bytes")
        yield await reader.readexactly(length)
    else:
        while part := await reader.read(65536):
            yield part


def _message(body: bytes) -> str:
    """What an error's body says."""
    try:
        return str(json.loads(body)["error"]["message"])[:300]
    except (ValueError, KeyError, TypeError):
        return body[:200].decode(errors="replace")
