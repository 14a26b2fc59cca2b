"""Carrying out a plan: submit, follow, tell, whole or as a stream, with the client watched all the while."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import msgspec

from intarsia.core.errors import IntarsiaError
from intarsia.engine.events import Event, Finished
from intarsia.server.errors import ApiError, FailedError, TimeLimitError, UnavailableError
from intarsia.server.output.chat import ChatTeller
from intarsia.server.output.completions import CompletionTeller
from intarsia.server.output.reader import Part
from intarsia.server.service import Service
from intarsia.server.translate.plan import Plan
from intarsia.server.web.bridge import Bridge, Item
from intarsia.server.web.exchange import ClientGoneError, Exchange
from intarsia.server.web.refusals import as_api_error, error_body

# A comment goes out after so many seconds without an event: proxies keep the connection, and writing to a
# client that vanished fails.
PATIENCE = 10.0
_DONE = b"data: [DONE]\n\n"
_COMMENT = b": waiting\n\n"


@dataclass
class Run:
    """One plan on its way."""

    exchange: Exchange
    service: Service
    plan: Plan
    teller: ChatTeller | CompletionTeller
    bridge: Bridge


async def generate(exchange: Exchange, service: Service, plan: Plan) -> None:
    """Run a plan and send its response. Raises ApiError before anything was sent, and ClientGoneError."""
    record = exchange.record
    record.stream, record.choices = plan.telling.stream, len(plan.choices)
    record.prompt_tokens, record.user = plan.prompt_tokens, plan.user or ""
    teller = (ChatTeller if plan.route == "chat" else CompletionTeller)(plan, service.model)
    run = Run(exchange, service, plan, teller, Bridge())
    async with _watched(run):
        await _submit(run)
        await (_stream(run) if plan.telling.stream else _whole(run))


async def _submit(run: Run) -> None:
    """Hand the requests to the engine, beside the event loop: it looks at every token of a prompt."""
    requests = [choice.request for choice in run.plan.choices]
    loop = asyncio.get_running_loop()
    try:
        await loop.run_in_executor(run.service.translators, run.bridge.submit, run.service.engine, requests)
    except IntarsiaError as error:
        problem = as_api_error(error, prompt_field=run.plan.prompt_field)
    else:
        return
    raise problem


@contextlib.asynccontextmanager
async def _watched(run: Run) -> AsyncIterator[None]:
    """Notices when the client leaves, and leaves nothing running behind."""

    async def watch() -> None:
        await run.exchange.departed()
        run.bridge.leave("client")

    watcher = asyncio.create_task(watch())
    try:
        yield
    except BaseException:
        run.bridge.leave("client")
        raise
    finally:
        watcher.cancel()
        run.exchange.record.finish = [reader.ending() for reader in run.teller.readers]


async def _followed(run: Run) -> AsyncIterator[list[Item]]:
    """The run's events.

    Raises ApiError when a reply failed or time is up, and ClientGoneError when nobody reads any more.
    """
    bridge, limit = run.bridge, run.service.settings.request_timeout
    expiry = asyncio.get_running_loop().call_later(limit, bridge.leave, "time")
    failed: ApiError | None = None
    try:
        async for batch in bridge.batches(PATIENCE):
            for index, event, moment in batch:
                run.exchange.record.saw(index, event, moment)
                failed = failed or _failure(run, index, event)
            if failed is not None:
                bridge.cancel()
            elif not bridge.left:
                yield batch
    finally:
        expiry.cancel()
    if bridge.left == "client":
        raise ClientGoneError
    if failed is not None:
        raise failed
    if bridge.left == "time":
        raise TimeLimitError(f"The reply took longer than {limit:g} seconds.")


def _failure(run: Run, index: int, event: Event) -> ApiError | None:
    """What a reply's last event says of an end that nobody wished for."""
    if not isinstance(event, Finished) or run.bridge.left:
        return None
    if event.reason == "error":
        return FailedError(f"The reply failed: {event.error or 'no reason is known'}"[:400])
    if event.reason == "cancelled" and not run.teller.readers[index].satisfied:
        return UnavailableError("The server ended the reply.", code="draining")
    return None


def _parts(run: Run, batch: list[Item]) -> list[tuple[int, Part]]:
    """What a batch adds to each reply; a reply that has said all it may is ended."""
    events: dict[int, list[Event]] = {}
    for index, event, _ in batch:
        events.setdefault(index, []).append(event)
    parts = []
    for index, new in events.items():
        reader = run.teller.readers[index]
        parts.append((index, reader.take(new)))
        if reader.satisfied and reader.finished is None:
            run.bridge.cancel(index)
    return parts


async def _whole(run: Run) -> None:
    parts = [Part() for _ in run.plan.choices]
    async for batch in _followed(run):
        for index, part in _parts(run, batch):
            parts[index].add(part)
    body = msgspec.json.encode(run.teller.whole(parts))
    await run.exchange.respond(200, body, "application/json")


async def _stream(run: Run) -> None:
    exchange, teller = run.exchange, run.teller
    await exchange.begin_stream()
    await exchange.write(b"".join(map(_event, teller.opening())) or _COMMENT)
    try:
        async for batch in _followed(run):
            told = [chunk for index, part in _parts(run, batch) for chunk in teller.chunks(index, part)]
            if told or not batch:
                await exchange.write(b"".join(map(_event, told)) or _COMMENT)
        end = _event(teller.usage_chunk()) if run.plan.telling.include_usage else b""
    except ApiError as error:
        exchange.record.code = error.code or ""
        end = b"data: " + error_body(error) + b"\n\n"
    await exchange.write(end + _DONE)
    await exchange.end_stream()


def _event(chunk: msgspec.Struct) -> bytes:
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"
