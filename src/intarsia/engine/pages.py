"""The pool of cache pages that all streams share."""

import heapq

from torch import Tensor

from intarsia.engine.errors import PagesExhaustedError, WindowError


class PagePool:
    """Hands out pages, the lowest free one first, and keeps the device's page tables in step.

    The order depends on the calls alone, so ranks that make the same calls hold the same tables.
    """

    def __init__(self, page_table: Tensor, pages: int, page: int) -> None:
        """page_table int32 [streams, pages of a window], filled with the null page `pages`; `page` tokens each."""
        self._table = page_table
        self._page = page
        self._null = pages
        self._free = list(range(pages))
        self._held: list[list[int]] = [[] for _ in range(page_table.shape[0])]

    @property
    def free(self) -> int:
        """How many pages no stream holds."""
        return len(self._free)

    def ensure(self, stream: int, end: int) -> None:
        """Map pages so that positions before `end` can be written. Nothing is mapped if they cannot all be."""
        held = self._held[stream]
        missing = -(-end // self._page) - len(held)
        if len(held) + missing > self._table.shape[1]:
            raise WindowError(
                f"stream {stream}",
                found=f"{end} tokens",
                expected=f"at most {self._table.shape[1] * self._page}",
                action="use a larger window or a shorter prompt",
            )
        if missing > len(self._free):
            raise PagesExhaustedError(
                f"stream {stream}",
                found=f"{len(self._free)} free pages",
                expected=f"{missing}",
                action="use a larger pool or fewer streams",
            )
        for _ in range(missing):
            number = heapq.heappop(self._free)
            self._table[stream, len(held)] = number
            held.append(number)

    def truncate(self, stream: int, keep: int) -> None:
        """Give back every page that holds none of the first `keep` tokens."""
        held = self._held[stream]
        while len(held) > -(-keep // self._page):
            heapq.heappush(self._free, held.pop())
            self._table[stream, len(held)] = self._null
