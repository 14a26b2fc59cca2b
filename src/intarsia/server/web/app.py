"""The ASGI application: who may ask, which route answers, and how refusals are told."""

import logging

from intarsia.core.errors import IntarsiaError
from intarsia.server.errors import (
    ApiError,
    FailedError,
    HeadersTooLargeError,
    HostRefusedError,
    MethodNotAllowedError,
    UnavailableError,
)
from intarsia.server.observe.log import log
from intarsia.server.observe.metrics import Metrics
from intarsia.server.service import Service
from intarsia.server.web.connections import LARGEST_HEAD
from intarsia.server.web.exchange import ClientGoneError, Exchange, Receive, Scope, Send
from intarsia.server.web.keys import KeyFile
from intarsia.server.web.refusals import DRAIN_RETRY, as_api_error, error_body
from intarsia.server.web.routes import ALWAYS, OPEN, Routes, not_found

GONE = 499
MOST_HEADERS = 100
_LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
# Asked every few seconds by machines; told only when something is wrong.
_QUIET = ("/health", "/metrics")


class App:
    """Answers every request, whatever happens: nothing but a client that left goes without a response."""

    def __init__(self, service: Service, metrics: Metrics, routes: Routes, keys: KeyFile | None) -> None:
        self._service = service
        self._metrics = metrics
        self._routes = routes
        self._keys = keys
        self._hosts = service.settings.allowed_hosts
        if not self._hosts and keys is None and service.settings.loopback:
            self._hosts = _LOCAL_NAMES

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send, self._service.settings)
        try:
            await self._answer(exchange)
        except ClientGoneError:
            exchange.record.status = exchange.record.status if exchange.done else GONE
        except IntarsiaError as error:
            await self._refuse(exchange, as_api_error(error))
        except Exception:
            log("request failed", logging.ERROR, trace=True, path=exchange.record.path, id=exchange.record.id)
            await self._refuse(exchange, FailedError("The server failed.", code="internal_error"))
        finally:
            self._remember(exchange)

    async def _answer(self, exchange: Exchange) -> None:
        _check_headers(exchange)
        host = _host(exchange.headers.get("host", ""))  # none at all: no browser would leave it out
        if self._hosts and host and host not in self._hosts:
            raise HostRefusedError("The service is not known under this host name.")
        if self._keys is not None and not self._open(exchange):
            exchange.record.key = self._keys.label_of(exchange.headers)
        found = self._routes.find(exchange.path)
        if found is None:
            raise not_found(exchange.path)
        method, endpoint = found
        if exchange.method != method:
            refusal = MethodNotAllowedError(f"{exchange.path} is asked with {method}.")
            refusal.headers["Allow"] = method
            raise refusal
        if self._service.draining and exchange.path not in ALWAYS:
            raise UnavailableError("The server is ending.", code="draining", retry_after=DRAIN_RETRY)
        self._service.active += 1
        try:
            await endpoint(exchange)
        finally:
            self._service.active -= 1

    def _open(self, exchange: Exchange) -> bool:
        """True for paths that need no key. A key that is given anyway is looked at where it tells more."""
        path = exchange.path
        given = "authorization" in exchange.headers or "x-api-key" in exchange.headers
        return (path in OPEN and not given) or (path == "/metrics" and self._service.settings.metrics_open)

    async def _refuse(self, exchange: Exchange, error: ApiError) -> None:
        exchange.record.code = error.code or ""
        if exchange.started:
            # part of a response is out; only the end of the connection tells that it is not all
            exchange.abort()
            return
        try:
            await exchange.respond(
                error.status,
                error_body(error),
                "application/json",
                error.headers,
                close=error.close or self._service.draining,
            )
        except ClientGoneError:
            exchange.record.status = GONE

    def _remember(self, exchange: Exchange) -> None:
        record = exchange.record
        known = record.path if record.path in self._routes.table else "other"
        self._metrics.saw(record, known)
        if record.path not in _QUIET or record.status not in (200, 503):
            log("request", **record.line())


def _check_headers(exchange: Exchange) -> None:
    """What came in one piece was never held against the connection's own limit."""
    size = sum(len(name) + len(value) for name, value in exchange.headers.items())
    if size > LARGEST_HEAD or exchange.header_count > MOST_HEADERS:
        raise HeadersTooLargeError(f"More than {MOST_HEADERS} headers or {LARGEST_HEAD:,} bytes of them.")


def _host(header: str) -> str:
    """The name in a Host header, without port and brackets."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()
