"""What is remembered of one request, for the log line and the metrics. No text of prompts or replies is."""

import time
from dataclasses import dataclass, field
from typing import Any

from intarsia.engine.events import Finished, Tokens


@dataclass(slots=True)
class Record:
    """One HTTP request."""

    method: str
    path: str
    client: str
    id: str = ""
    key: str = ""
    """Label of the API key."""
    status: int = 0
    code: str = ""
    """Code of the refusal, if it was one."""
    user: str = ""
    stream: bool = False
    choices: int = 0
    finish: list[str] = field(default_factory=list)
    prompt_tokens: int = 0
    finished: list[Finished] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)
    first_token: float | None = None
    gaps: list[tuple[float, int]] = field(default_factory=list)
    """Seconds since the event before it, and tokens, of every further event of a reply."""
    _last: dict[int, float] = field(default_factory=dict)

    def saw(self, index: int, event: object, moment: float) -> None:
        """Take the time of an event of reply `index`."""
        if isinstance(event, Finished):
            self.finished.append(event)
        elif isinstance(event, Tokens) and event.ids:
            if self.first_token is None:
                self.first_token = moment
            if index in self._last:
                self.gaps.append((moment - self._last[index], len(event.ids)))
            self._last[index] = moment

    def line(self) -> dict[str, Any]:
        """The fields of the log line; what is empty is left out."""
        usages = [one.usage for one in self.finished]
        first = usages[0] if usages else None
        fields: dict[str, Any] = {
            "id": self.id,
            "method": self.method,
            "path": self.path,
            "client": self.client,
            "key": self.key,
            "user": self.user,
            "status": self.status,
            "code": self.code,
            "stream": self.stream,
            "choices": self.choices if self.choices > 1 else 0,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": first.cached_tokens if first else 0,
            "cache_reason": first.cache_reason if first else "",
            "completion_tokens": sum(usage.completion_tokens for usage in usages),
            "drafted": sum(sum(usage.drafted) for usage in usages),
            "accepted": sum(sum(usage.accepted) for usage in usages),
            "finish": ",".join(self.finish),
            "error": "; ".join(one.error for one in self.finished if one.error),
            "queue_ms": _ms(first.queue_seconds) if first else 0,
            "prefill_ms": _ms(first.prefill_seconds) if first else 0,
            "first_token_ms": _ms(self.first_token - self.begun) if self.first_token else 0,
            "total_ms": _ms(time.monotonic() - self.begun),
        }
        return {name: value for name, value in fields.items() if value}


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
