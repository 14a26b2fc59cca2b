"""What is served under which path."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any, TypeVar

import msgspec

from intarsia.core.errors import IntarsiaError
from intarsia.server.errors import NotFoundError
from intarsia.server.observe.metrics import Metrics
from intarsia.server.observe.watchdog import Watchdog
from intarsia.server.service import Service
from intarsia.server.translate.chat import plan_chat
from intarsia.server.translate.completions import plan_completions
from intarsia.server.translate.tokens import detokenize, tokenize
from intarsia.server.web.exchange import Exchange
from intarsia.server.web.generate import generate
from intarsia.server.web.refusals import as_api_error
from intarsia.server.wire.asked import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from intarsia.server.wire.body import read

Endpoint = Callable[[Exchange], Awaitable[None]]
T = TypeVar("T")
_JSON = "application/json"
_METRICS = "text/plain; version=0.0.4; charset=utf-8"
# Answered while the server drains, and without a key.
OPEN = ("/health", "/version")
ALWAYS = ("/health", "/version", "/metrics")
MODEL = "/v1/models/"


class Routes:
    """The endpoints of one service."""

    def __init__(self, service: Service, metrics: Metrics, watchdog: Watchdog) -> None:
        self._service = service
        self._metrics = metrics
        self._watchdog = watchdog
        self.table: dict[str, tuple[str, Endpoint]] = {
            "/health": ("GET", self.health),
            "/metrics": ("GET", self.metrics),
            "/v1/models": ("GET", self.models),
            "/version": ("GET", self.version),
            "/weights": ("GET", self.weights),
            "/detokenize": ("POST", self.detokenize),
            "/tokenize": ("POST", self.tokenize),
            "/v1/chat/completions": ("POST", self.chat),
            "/v1/completions": ("POST", self.completions),
        }

    def find(self, path: str) -> tuple[str, Endpoint] | None:
        """Method and endpoint of a path."""
        if path.startswith(MODEL) and len(path) > len(MODEL):
            return "GET", self.model
        return self.table.get(path)

    async def chat(self, exchange: Exchange) -> None:
        """A reply to a conversation."""
        id = exchange.record.id = f"chatcmpl-{secrets.token_hex(16)}"
        body = await exchange.body()
        plan = await self._translate(lambda: plan_chat(self._service, read(body, ChatRequest), id))
        await generate(exchange, self._service, plan)

    async def completions(self, exchange: Exchange) -> None:
        """Continuations of plain prompts."""
        id = exchange.record.id = f"cmpl-{secrets.token_hex(16)}"
        body = await exchange.body()
        plan = await self._translate(
            lambda: plan_completions(self._service, read(body, CompletionRequest), id), prompt_field="prompt"
        )
        await generate(exchange, self._service, plan)

    async def tokenize(self, exchange: Exchange) -> None:
        """The tokens that the other routes would run."""
        body = await exchange.body()
        await _json(
            exchange, await self._translate(lambda: tokenize(self._service, read(body, TokenizeRequest)))
        )

    async def detokenize(self, exchange: Exchange) -> None:
        """The text of tokens."""
        body = await exchange.body()
        await _json(
            exchange, await self._translate(lambda: detokenize(self._service, read(body, DetokenizeRequest)))
        )

    async def models(self, exchange: Exchange) -> None:
        """The names under which the model is served."""
        cards = [self._card(name) for name in self._service.model.names]
        await _json(exchange, {"object": "list", "data": cards})

    async def model(self, exchange: Exchange) -> None:
        """One of them."""
        name = exchange.path.removeprefix(MODEL)
        self._service.check_model(name)
        await _json(exchange, self._card(name))

    async def weights(self, exchange: Exchange) -> None:
        """How every module is stored and runs, and the configurations of kernels that have a choice."""
        told = {
            "object": "list",
            "kv_cache_dtype": self._service.settings.kv_cache_dtype,
            "data": list(self._service.model.weights),
            "tuning": self._service.model.tuning,
            "configurations": list(self._service.model.configurations),
        }
        await _json(exchange, told)

    async def version(self, exchange: Exchange) -> None:
        """The version of the package."""
        await _json(exchange, {"version": version("intarsia")})

    async def metrics(self, exchange: Exchange) -> None:
        """The page for Prometheus."""
        page = await asyncio.to_thread(self._metrics.page)
        await exchange.respond(200, page, _METRICS)

    async def health(self, exchange: Exchange) -> None:
        """Whether requests are taken, and to those who may know, what the engine does."""
        service = self._service
        ended = not service.engine.alive
        stalled = self._watchdog.stalled
        status = "draining" if service.draining else "ended" if ended else "stalled" if stalled else "ok"
        content: dict[str, Any] = {"status": status}
        if exchange.record.key or service.settings.api_key_file is None:
            content["engine"] = service.engine.stats()
            content["active_requests"] = service.active - 1  # without this one
        await _json(exchange, content, 200 if status == "ok" else 503)

    def _card(self, name: str) -> dict[str, Any]:
        model = self._service.model
        return {
            "id": name,
            "object": "model",
            "created": model.created,
            "owned_by": "intarsia",
            "root": model.root,
            "parent": None,
            "max_model_len": self._service.engine.window,
        }

    async def _translate(self, work: Callable[[], T], *, prompt_field: str = "messages") -> T:
        """Do work that takes a while beside the event loop; refusals come out as those of the API."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._service.translators, work)
        except IntarsiaError as error:
            problem = as_api_error(error, prompt_field=prompt_field)
        raise problem


def not_found(path: str) -> NotFoundError:
    """The refusal of an unknown path."""
    return NotFoundError(f"There is nothing at {path[:100]}.")


async def _json(exchange: Exchange, content: object, status: int = 200) -> None:
    await exchange.respond(status, msgspec.json.encode(content), _JSON)
