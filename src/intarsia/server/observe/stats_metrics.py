"""The engine's counters as metric families."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from intarsia.engine.events import EngineStats

# (our name, vLLM's name, meaning); a name without the field it shows is the field.
_GAUGES = (
    ("running", "num_requests_running", "Requests that have a stream."),
    ("waiting", "num_requests_waiting", "Requests that wait for a stream."),
    ("pages", None, "Pages of the pool."),
    ("pages_free", None, "Pages that nothing holds."),
    ("kept_states", None, "Kept prompt states."),
    ("kept_bytes", None, "Bytes of kept prompt states."),
)
_COUNTERS = (
    ("prompt_tokens", "prompt_tokens", "Prompt tokens, reused ones included."),
    ("completion_tokens", "generation_tokens", "Tokens written."),
    ("cached_tokens", "prefix_cache_hits", "Prompt tokens that a kept state stood for."),
    ("steps", None, "Forward passes."),
    ("kept_hits", None, "Prompts that began from a kept state."),
    ("kept_misses", None, "Prompts that began from nothing."),
    ("kept_evicted", None, "Kept states that made room."),
    ("copied", None, "Drafts copied from earlier text."),
    ("copied_accepted", None, "Copied drafts that were kept."),
    ("prefill_seconds", None, "Seconds of steps with prompt rows."),
    ("decode_seconds", None, "Seconds of steps without."),
)


def engine_families(stats: EngineStats, model: str) -> Iterator[Metric]:
    """Every figure under our name, and under vLLM's where it has one."""
    for field, alias, text in _GAUGES:
        yield from _gauge(field, alias, text, float(getattr(stats, field)), model)
    used = 1 - stats.pages_free / stats.pages if stats.pages else 0.0
    yield from _gauge("pool_used", "kv_cache_usage_perc", "Used share of the pool, 0 to 1.", used, model)
    for field, alias, text in _COUNTERS:
        yield from _counter(field, alias, text, [((), float(getattr(stats, field)))], model)
    yield from _counter(
        "looked_up_tokens",
        "prefix_cache_queries",
        "Prompt tokens that were looked up among kept states.",
        [((), float(stats.prompt_tokens))],
        model,
    )
    finished = [((reason,), float(count)) for reason, count in stats.requests_finished.items()]
    yield from _counter(
        "requests_finished", None, "Requests that are over, by reason.", finished, model, ("reason",)
    )
    good = [(labels, count) for labels, count in finished if labels[0] in ("stop", "length")]
    yield from _counter(
        None, "request_success", "Replies that are complete.", good, model, ("finished_reason",)
    )
    yield from _drafts(stats, model)


def _drafts(stats: EngineStats, model: str) -> Iterator[Metric]:
    """Acceptance by place in the chain: where drafting stops paying can be read from it."""
    places = [((str(place),), float(count)) for place, count in enumerate(stats.accepted)]
    tried = [((str(place),), float(count)) for place, count in enumerate(stats.drafted)]
    yield from _counter("drafted", None, "Drafts verified, by place.", tried, model, ("position",))
    yield from _counter(
        "accepted",
        "spec_decode_num_accepted_tokens_per_pos",
        "Drafts kept, by place.",
        places,
        model,
        ("position",),
    )
    for alias, text, value in (
        ("spec_decode_num_drafts", "Steps with drafts.", stats.drafted[0] if stats.drafted else 0),
        ("spec_decode_num_draft_tokens", "Drafts verified.", sum(stats.drafted)),
        ("spec_decode_num_accepted_tokens", "Drafts kept.", sum(stats.accepted)),
    ):
        yield from _counter(None, alias, text, [((), float(value))], model)


def _gauge(name: str, alias: str | None, text: str, value: float, model: str) -> Iterator[Metric]:
    for full in [f"intarsia_{name}"] + ([f"vllm:{alias}"] if alias else []):
        family = GaugeMetricFamily(full, text, labels=["model_name"])
        family.add_metric([model], value)
        yield family


def _counter(
    name: str | None,
    alias: str | None,
    text: str,
    values: Sequence[tuple[tuple[str, ...], float]],
    model: str,
    labels: tuple[str, ...] = (),
) -> Iterator[Metric]:
    for full in ([f"intarsia_{name}"] if name else []) + ([f"vllm:{alias}"] if alias else []):
        family = CounterMetricFamily(full, text, labels=["model_name", *labels])
        for own, value in values:
            family.add_metric([model, *own], value)
        yield family
