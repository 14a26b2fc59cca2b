"""Whether a device's memory holds weights, scratch and caches, and the largest window that it does hold."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from intarsia.core.errors import Violation

LEAST_RESERVE = 4 << 30
RESERVE_SHARE = 10
"""One tenth stays free: contexts, communication buffers and activations are not in the figures."""


@dataclass(frozen=True, slots=True)
class Need:
    """What one rank takes: bytes that stay, and the highest point while loading."""

    resident: int
    peak: int
    peak_at: str


def reserve_of(device_memory: int) -> int:
    """Bytes of a device that are left free."""
    return max(LEAST_RESERVE, device_memory // RESERVE_SHARE)


def fitting_window(
    limit: int, page: int, budget: int, needs: Sequence[Need], caches: Callable[[int, int], int]
) -> int:
    """The most tokens, in whole pages and up to `limit`, whose caches fit beside the weights on every rank.

    `caches(rank, tokens)` gives bytes. 0 when not even a page fits.
    """

    def fits(tokens: int) -> bool:
        return all(need.resident + caches(rank, tokens) <= budget for rank, need in enumerate(needs))

    low, high = 0, -(-limit // page)
    while low < high:
        middle = (low + high + 1) // 2
        if fits(min(limit, middle * page)):
            low = middle
        else:
            high = middle - 1
    return min(limit, low * page)


def memory_violations(
    device_memory: int, needs: Sequence[Need], context: int | None, window: int, native: int
) -> list[Violation]:
    """Every rank that does not fit, and a window that does not."""
    budget = device_memory - reserve_of(device_memory)
    found = [
        Violation(
            "memory-load",
            f"rank {rank}",
            f"{need.peak:,} bytes while loading {need.peak_at}",
            f"at most {max(budget, 0):,} of {device_memory:,} bytes, so that the rest stays free",
            "use more ranks, or a manifest with smaller formats",
        )
        for rank, need in enumerate(needs)
        if need.peak > budget
    ]
    if context is not None and context > native:
        found.append(
            Violation(
                "context", "context", f"{context:,} tokens", f"at most {native:,}, the model's own limit"
            )
        )
    elif context is not None and context > window:
        found.append(
            Violation(
                "memory-context",
                "context",
                f"{context:,} tokens",
                f"at most {window:,} beside the weights in {max(budget, 0):,} bytes",
                "use a smaller context, fewer streams or more ranks",
            )
        )
    return found
