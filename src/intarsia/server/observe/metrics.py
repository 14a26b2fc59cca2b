"""Metrics for Prometheus: our own names, and vLLM's for the same figures so that dashboards work.

What cannot be counted honestly has no metric: there are no preemptions here, for one.
"""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from intarsia.server.observe.record import Record
from intarsia.server.observe.stats_metrics import engine_families
from intarsia.server.service import Service

_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0)
_LONG = (0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0)
_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)
_SIZES = tuple(float(1 << power) for power in range(21))

# (our name, vLLM's name, meaning, buckets)
_TIMES = (
    ("time_to_first_token_seconds", None, "From the request to its first token.", _FIRST),
    ("inter_token_latency_seconds", None, "Between two tokens of a reply.", _SHORT),
    ("e2e_request_latency_seconds", None, "From the request to the end of its reply.", _LONG),
    ("queue_seconds", "request_queue_time_seconds", "Waiting for a stream.", _LONG),
    ("prefill_seconds", "request_prefill_time_seconds", "Running the prompt.", _LONG),
    ("decode_seconds", "request_decode_time_seconds", "Writing the reply.", _LONG),
    ("request_prompt_tokens", None, "Tokens of a prompt.", _SIZES),
    ("request_generation_tokens", None, "Tokens of a reply.", _SIZES),
)


class _Twin:
    """One histogram under our name and vLLM's."""

    def __init__(self, name: str, alias: str | None, text: str, buckets: tuple[float, ...], owner: "Metrics"):
        self._pair = [
            Histogram(full, text, ["model_name"], buckets=buckets, registry=owner.registry).labels(
                owner.model
            )
            for full in (f"intarsia_{name}", f"vllm:{alias or name}")
        ]

    def observe(self, value: float, count: int = 1) -> None:
        for histogram in self._pair:
            for _ in range(count):
                histogram.observe(value)


class Metrics:
    """All metrics of one service."""

    def __init__(self, service: Service) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.model = service.model.name
        self._times = {name: _Twin(name, alias, text, buckets, self) for name, alias, text, buckets in _TIMES}
        self._requests = Counter(
            "intarsia_http_requests",
            "Requests by path and status.",
            ["path", "status"],
            registry=self.registry,
        )
        self.stalls = Counter(
            "intarsia_stalled_steps", "Steps the watchdog found too long.", registry=self.registry
        )
        self.connections: Callable[[], int] = lambda: 0
        self.registry.register(_FromService(self, service))

    def page(self) -> bytes:
        """The text Prometheus reads."""
        return generate_latest(self.registry)

    def saw(self, record: Record, path: str) -> None:
        """Count a request that is over; `path` is a known route or "other"."""
        self._requests.labels(path, str(record.status)).inc()
        if record.first_token is not None:
            self._times["time_to_first_token_seconds"].observe(record.first_token - record.begun)
        for gap, tokens in record.gaps:
            self._times["inter_token_latency_seconds"].observe(gap / tokens, tokens)
        for finished in record.finished:
            usage = finished.usage
            seconds = usage.queue_seconds + usage.prefill_seconds + usage.decode_seconds
            self._times["e2e_request_latency_seconds"].observe(seconds)
            self._times["queue_seconds"].observe(usage.queue_seconds)
            self._times["prefill_seconds"].observe(usage.prefill_seconds)
            self._times["decode_seconds"].observe(usage.decode_seconds)
            self._times["request_prompt_tokens"].observe(usage.prompt_tokens)
            self._times["request_generation_tokens"].observe(usage.completion_tokens)


class _FromService(Collector):
    """Figures that are read when they are asked for."""

    def __init__(self, metrics: Metrics, service: Service) -> None:
        self._metrics = metrics
        self._service = service

    def collect(self) -> Iterator[Metric]:
        service = self._service
        yield from engine_families(service.engine.stats(), service.model.name)
        yield GaugeMetricFamily(
            "intarsia_connections", "Open connections.", value=float(self._metrics.connections())
        )
        yield GaugeMetricFamily(
            "intarsia_draining", "1 while no new requests are taken.", value=float(service.draining)
        )
        lookups = CounterMetricFamily("intarsia_grammar_lookups", "Grammars asked for.", labels=["result"])
        lookups.add_metric(["hit"], service.grammars.hits)
        lookups.add_metric(["miss"], service.grammars.misses)
        yield lookups
