"""What the engine counts, and what a request is told it took."""

from collections import Counter
from dataclasses import dataclass, field

from intarsia.engine.events import FinishReason, Usage
from intarsia.engine.lanes.lane import Lane


@dataclass(slots=True)
class Counters:
    """Totals since the start."""

    finished: "Counter[FinishReason]" = field(default_factory=Counter)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    steps: int = 0
    failed_steps: int = 0
    sent_back: int = 0
    """Places given up, to a more important request or for want of pages."""
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    def finish(self, lane: Lane, reason: FinishReason) -> Usage:
        """Count a request that has ended; its own figures."""
        usage = _usage(lane)
        self.finished[reason] += 1
        self.prompt_tokens += usage.prompt_tokens
        self.cached_tokens += usage.cached_tokens
        self.completion_tokens += usage.completion_tokens
        self.prefill_seconds += usage.prefill_seconds
        self.decode_seconds += usage.decode_seconds
        return usage


def _usage(lane: Lane) -> Usage:
    moments, acceptance = lane.moments, lane.acceptance
    admitted = moments.admitted or moments.ended
    first = moments.first_token or moments.ended
    return Usage(
        prompt_tokens=len(lane.prompt),
        cached_tokens=lane.cached,
        completion_tokens=len(lane.reply.tokens),
        reasoning_tokens=lane.reply.reasoning_tokens,
        cache_reason=lane.cache_reason,
        drafted=tuple(acceptance.drafted),
        accepted=tuple(acceptance.accepted),
        copied=acceptance.copied,
        copied_accepted=acceptance.copied_accepted,
        queue_seconds=admitted - moments.queued,
        prefill_seconds=first - admitted,
        decode_seconds=moments.ended - first,
    )
