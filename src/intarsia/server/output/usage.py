"""Token counts of a response."""

from collections.abc import Sequence

from intarsia.engine.events import Usage
from intarsia.server.output.reader import ReplyReader
from intarsia.server.translate.plan import Plan
from intarsia.server.wire.told import CompletionDetails, PromptDetails, UsageTold


def usage_of(plan: Plan, readers: Sequence[ReplyReader]) -> UsageTold:
    """The counts of all replies together; a prompt that several replies share counts once."""
    usages = [reader.finished.usage if reader.finished else Usage() for reader in readers]
    firsts: dict[int, Usage] = {}
    for choice, usage in zip(plan.choices, usages, strict=True):
        firsts.setdefault(id(choice.prompt), usage)
    prompt = plan.prompt_tokens
    completion = sum(usage.completion_tokens for usage in usages)
    reasons = dict.fromkeys(usage.cache_reason for usage in firsts.values() if usage.cache_reason)
    return UsageTold(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptDetails(
            cached_tokens=sum(usage.cached_tokens for usage in firsts.values()),
            cache_reason="; ".join(reasons),
        ),
        completion_tokens_details=CompletionDetails(
            reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
            drafted_tokens=added([usage.drafted for usage in usages]),
            accepted_tokens=added([usage.accepted for usage in usages]),
        ),
    )


def added(rows: Sequence[Sequence[int]]) -> list[int]:
    """Sums by place; shorter rows count as zero where they end."""
    longest = max(map(len, rows), default=0)
    return [sum(row[place] for row in rows if place < len(row)) for place in range(longest)]
