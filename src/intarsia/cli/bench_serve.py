"""intarsia bench serve: how fast a running server is under load."""

from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from intarsia.cli.output import emit_json, note, read_key
from intarsia.evidence.traffic.profiles import TrafficSettings


@dataclass(frozen=True, kw_only=True)
class BenchServe(TrafficSettings):
    """Measure a running server: time to the first token, time between tokens, throughput, cached share.

    `intarsia bench serve --url http://127.0.0.1:8000 --profile agent` talks to any OpenAI-compatible server.
    The conversations follow from the seed, so two servers are asked the same.
    """

    url: str = "http://127.0.0.1:8000"
    """Where the server listens."""
    api_key_file: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """File with the API key to send."""
    json: bool = False
    """Print one JSON document instead of lines."""

    def run(self) -> int:
        from intarsia.evidence.traffic.client import Server
        from intarsia.evidence.traffic.run import run_traffic

        told = run_traffic(Server.of(self.url, read_key(self.api_key_file)), self, _tell)
        if self.json:
            emit_json(told)
        else:
            print("\n".join(lines(told)))
        return 1 if told["failed"] else 0


def _tell(done: int, total: int) -> None:
    if done == total or done % max(1, total // 10) == 0:
        note(f"{done} of {total} conversations")


def lines(told: dict[str, Any]) -> list[str]:
    """A report for people."""
    rows = [
        f"{told['profile']}: {told['about']}; {told['clients']} clients at {told['model']}",
        f"{told['requests']} requests in {told['seconds']:.1f} s, {told['failed']} failed; "
        f"{told['prompt_tokens']:,} + {told['completion_tokens']:,} tokens",
        f"{told['tokens_per_second']:.1f} tokens/s, {told['requests_per_second']:.2f} requests/s",
    ]
    for name in ("time_to_first_token", "time_per_token", "gap_between_events"):
        spread = told[name]
        if spread is not None:
            shown = "  ".join(f"{key} {1000 * value:.1f} ms" for key, value in spread.items())
            rows.append(f"{name.replace('_', ' ')}: {shown}")
    for name in ("cached_share", "accepted_share"):
        if told[name] is not None:
            rows.append(f"{name.replace('_', ' ')}: {told[name]:.1%}")
    rows += [f"{count} x {error}" for error, count in told["errors"].items()]
    return rows
