"""The server process: sockets, signals, start and end."""

import asyncio
import contextlib
import logging
import math
import os
import resource
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

from uvicorn import Config, Server

from intarsia.core.errors import UsageError
from intarsia.server.observe.dump import dump_on_signal
from intarsia.server.observe.log import log, start_log
from intarsia.server.observe.metrics import Metrics
from intarsia.server.observe.watchdog import Watchdog
from intarsia.server.service import Service
from intarsia.server.settings import ServerSettings
from intarsia.server.web.app import App
from intarsia.server.web.connections import LARGEST_HEAD, connections
from intarsia.server.web.keys import KeyFile
from intarsia.server.web.routes import Routes

BACKLOG = 2048
SPARE_DESCRIPTORS = 256
POLL_SECONDS = 0.05
# After a drain: idle connections are closed, and what does not end by itself is cancelled.
GRACE_SECONDS = 2
ENGINE_SECONDS = 10.0
TERMINATED = 128 + signal.SIGTERM


class _Server(Server):
    """uvicorn's server without its signal handlers: signals mean something else here."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Process:
    """Serves one service until it is told to end."""

    def __init__(self, service: Service, listener: socket.socket | None = None) -> None:
        """`listener` is a socket from `bind`; without one the settings' address is bound when it runs."""
        settings = service.settings
        self._service = service
        self._listener = listener
        self._keys = read_keys(settings)
        metrics = Metrics(service)
        self._watchdog = Watchdog(service, metrics)
        routes = Routes(service, metrics, self._watchdog)
        self._server = _Server(
            Config(
                App(service, metrics, routes, self._keys),
                http=connections(settings),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=math.ceil(settings.idle_timeout),
                timeout_graceful_shutdown=GRACE_SECONDS,
                h11_max_incomplete_event_size=LARGEST_HEAD,
                backlog=BACKLOG,
            )
        )
        metrics.connections = lambda: len(self._server.server_state.connections)
        self._draining: asyncio.Task[None] | None = None

    def run(self) -> None:
        """Listen, serve, and return after a drain. Raises UsageError when the address cannot be used."""
        start_log()
        _raise_descriptor_limit(self._service.settings.max_connections)
        listener = self._listener or bind(self._service.settings)
        listener.listen(BACKLOG)  # from here on clients wait instead of being refused
        try:
            asyncio.run(self._serve(listener))
        finally:
            listener.close()
            self._service.engine.close(drain=False, timeout=ENGINE_SECONDS)
            self._service.close()
            log("ended")

    async def _serve(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, signal.Signals(number).name)
        dump_on_signal(loop, self._service)
        self._watchdog.start()
        self._tell(listener)
        try:
            await self._server.serve(sockets=[listener])
        finally:
            self._watchdog.stop()

    def _tell(self, listener: socket.socket) -> None:
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        settings = self._service.settings
        log(
            "listening",
            url=f"http://{shown}:{port}",
            model=self._service.model.name,
            max_model_len=self._service.engine.window,
            keys=self._keys is not None,
        )
        if self._keys is None and not settings.loopback:
            log(
                "open to everybody",
                logging.WARNING,
                host=settings.host,
                action="give an API key file, or listen on 127.0.0.1",
            )

    def _on_signal(self, name: str) -> None:
        """The first one drains; the second ends at once."""
        if self._draining is not None:
            log("ended at once", logging.WARNING, signal=name, requests=self._service.active)
            logging.shutdown()
            os._exit(TERMINATED)
        self._service.draining = True
        log("draining", signal=name, requests=self._service.active)
        self._draining = asyncio.get_running_loop().create_task(self._drain())

    async def _drain(self) -> None:
        """Wait for running replies; the socket stays open, so that new requests are told 503."""
        await self._until_idle(self._service.settings.drain_timeout)
        if self._service.active:
            log("drain ended", logging.WARNING, requests=self._service.active, reason="time")
            # what still runs is told that the server ended it
            await asyncio.to_thread(self._service.engine.close, drain=False, timeout=GRACE_SECONDS)
            await self._until_idle(GRACE_SECONDS)
        self._server.should_exit = True

    async def _until_idle(self, seconds: float) -> None:
        """Wait until no request is open, or time is up."""
        deadline = asyncio.get_running_loop().time() + seconds
        while self._service.active and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(POLL_SECONDS)


def read_keys(settings: ServerSettings) -> KeyFile | None:
    """The API keys, None if none are asked for. Raises KeyFileError."""
    return KeyFile(Path(settings.api_key_file)) if settings.api_key_file is not None else None


def bind(settings: ServerSettings) -> socket.socket:
    """A socket that holds the settings' address, and refuses clients until it listens. Raises UsageError."""
    problem = ""
    listener: socket.socket | None = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.setblocking(False)
        return listener
    except OSError as error:
        problem = error.strerror or str(error)
    if listener is not None:
        listener.close()
    raise UsageError(
        f"{settings.host}:{settings.port}",
        found=problem,
        action="use another --port or --host, or end the process that listens there",
    )


def _raise_descriptor_limit(connections: int) -> None:
    """Room for a descriptor a connection; told when the system does not give it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE_DESCRIPTORS
    if soft >= wanted:
        return
    new = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (new, hard))
    if new < wanted:
        log("few descriptors", logging.WARNING, limit=new, wanted=wanted)
