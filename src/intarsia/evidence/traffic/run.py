"""Running a profile against a server, and the figures of a run."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from intarsia.evidence.traffic.client import Server, ServerError
from intarsia.evidence.traffic.profiles import PROFILES, Conversation, TrafficSettings

Tell = Callable[[int, int], None]
"""(conversations done, conversations in all)."""


@dataclass(slots=True)
class Sample:
    """One request: when things happened (seconds of a monotonic clock) and what it used."""

    begun: float
    first: float | None = None
    last: float | None = None
    gaps: list[float] = field(default_factory=list)
    """Seconds between two events that carry text."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    cache_reason: str = ""
    error: str = ""
    status: int = 200


def run_traffic(
    server: Server, settings: TrafficSettings, tell: Tell = lambda done, total: None
) -> dict[str, Any]:
    """Run all conversations and return the report.

    Raises ServerError when the server cannot be asked at all.
    """
    return asyncio.run(_run(server, settings, tell))


async def _run(server: Server, settings: TrafficSettings, tell: Tell) -> dict[str, Any]:
    models = await server.get("/v1/models")
    model = settings.model or models["data"][0]["id"]
    samples: list[Sample] = []
    numbers = iter(range(settings.conversations))
    done = 0

    async def client() -> None:
        nonlocal done
        for number in numbers:
            samples.extend([sample async for sample in _converse(server, settings, number, model)])
            done += 1
            tell(done, settings.conversations)

    begun = time.monotonic()
    await asyncio.gather(*(client() for _ in range(min(settings.clients, settings.conversations))))
    return report(samples, time.monotonic() - begun, settings, model)


async def _converse(server: Server, settings: TrafficSettings, number: int, model: str) -> Any:
    """One conversation to its end, or to the first request that fails."""
    conversation = Conversation(settings, number)
    for body in conversation.bodies():
        sample, text = await measure(server, {**body, "model": model})
        yield sample
        if sample.error:
            return
        conversation.answer(text)


async def measure(server: Server, body: dict[str, Any]) -> tuple[Sample, str]:
    """One streamed chat request; an error is part of the sample."""
    sample = Sample(time.monotonic())
    text = ""
    try:
        async for event in server.events("/v1/chat/completions", body):
            moment = time.monotonic()
            _take_usage(sample, event.get("usage"))
            for choice in event["choices"]:
                delta = choice["delta"]
                text += delta.get("content") or ""
                if not any(delta.get(name) for name in ("content", "reasoning_content", "tool_calls")):
                    continue
                if sample.first is None:
                    sample.first = moment
                if sample.last is not None:
                    sample.gaps.append(moment - sample.last)
                sample.last = moment
    except ServerError as error:
        sample.error, sample.status = error.found, error.status
    return sample, text


def _take_usage(sample: Sample, usage: dict[str, Any] | None) -> None:
    if not usage:
        return
    prompt = usage.get("prompt_tokens_details") or {}
    completion = usage.get("completion_tokens_details") or {}
    sample.prompt_tokens = usage["prompt_tokens"]
    sample.completion_tokens = usage["completion_tokens"]
    sample.cached_tokens = prompt.get("cached_tokens") or 0
    sample.cache_reason = prompt.get("cache_reason") or ""
    sample.drafted = sum(completion.get("drafted_tokens") or ())
    sample.accepted = sum(completion.get("accepted_tokens") or ())


def report(
    samples: Sequence[Sample], seconds: float, settings: TrafficSettings, model: str
) -> dict[str, Any]:
    """The figures of a run. Times are seconds; a share is None when there is nothing to share."""
    good = [sample for sample in samples if not sample.error]
    first = [sample.first - sample.begun for sample in good if sample.first is not None]
    each = [
        (sample.last - sample.first) / (sample.completion_tokens - 1)
        for sample in good
        if sample.first is not None and sample.last is not None and sample.completion_tokens > 1
    ]
    prompt, written = (sum(getattr(s, n) for s in good) for n in ("prompt_tokens", "completion_tokens"))
    return {
        "model": model,
        "profile": settings.profile,
        "about": PROFILES[settings.profile].about,
        "clients": settings.clients,
        "requests": len(samples),
        "failed": len(samples) - len(good),
        "errors": dict(_counted(sample.error for sample in samples if sample.error)),
        "seconds": round(seconds, 3),
        "prompt_tokens": prompt,
        "completion_tokens": written,
        "tokens_per_second": _ratio(written, seconds),
        "requests_per_second": _ratio(len(good), seconds),
        "time_to_first_token": spread(first),
        "time_per_token": spread(each),
        "gap_between_events": spread([gap for sample in good for gap in sample.gaps]),
        "cached_share": _ratio(sum(sample.cached_tokens for sample in good), prompt),
        "accepted_share": _ratio(sum(s.accepted for s in good), sum(s.drafted for s in good)),
    }


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Median, 90th and 99th percentile and largest, each an observed value; None without values."""
    if not values:
        return None
    ordered = sorted(values)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 6)

    return {"p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": round(ordered[-1], 6)}


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None


def _counted(texts: Iterator[str]) -> Iterator[tuple[str, int]]:
    counts: dict[str, int] = {}
    for text in texts:
        counts[text[:120]] = counts.get(text[:120], 0) + 1
    yield from sorted(counts.items())
