"""The pool of cache pages that all streams and all kept prompt states share."""

import heapq
from collections.abc import Callable, Set
from dataclasses import dataclass

from torch import Tensor

from intarsia.engine.errors import PagesExhaustedError, WindowError

CopyPage = Callable[[int, int], None]
"""Copies everything of one physical page to another: (from, to)."""


@dataclass(frozen=True, slots=True)
class KeptPages:
    """The pages that hold the first `end` tokens of a sequence, which outlive the stream that wrote them.

    Rows before `end` - 1 are promised to stay as they are. The last one is not: an MTP layer writes its row
    `end` - 1 only when the token at `end` is known, and that differs between those who go on from here.
    """

    pages: tuple[int, ...]
    end: int


class PagePool:
    """Hands out pages, the lowest free one first, and keeps the device's page tables in step.

    A page may be held by several streams and kept states. A stream writes into a page in place when no other
    stream holds it and no kept state was promised the rows; otherwise it gets a copy of its own first. The
    order depends on the calls alone, so ranks that make the same calls hold the same tables.
    """

    def __init__(self, page_table: Tensor, pages: int, page: int, copy: CopyPage | None = None) -> None:
        """page_table int32 [streams, pages of a window], on the CPU, filled with the null page `pages`;
        `page` tokens each.

        `copy` is needed once pages are shared.
        """
        self._table = page_table.numpy()
        self._page = page
        self._null = pages
        self._copy = copy
        self._free = list(range(pages))
        self._held: list[list[int]] = [[] for _ in range(page_table.shape[0])]
        self._streams = [0] * pages
        # For every page the positions before which its rows are promised, one for each kept state.
        self._promised: list[list[int]] = [[] for _ in range(pages)]
        self._only_kept: set[int] = set()

    @property
    def free(self) -> int:
        """How many pages nobody holds."""
        return len(self._free)

    @property
    def pages(self) -> int:
        """How many pages there are."""
        return self._null

    def held(self, stream: int) -> int:
        """How many pages a stream holds."""
        return len(self._held[stream])

    def pages_for(self, tokens: int) -> int:
        """How many pages that many tokens take."""
        return -(-tokens // self._page)

    @property
    def only_kept(self) -> Set[int]:
        """Pages that kept states hold and no stream does: what dropping states can give back."""
        return self._only_kept

    def missing(self, stream: int, end: int, begin: int | None = None) -> int:
        """How many free pages `ensure` with the same arguments would take."""
        held, last = self._held[stream], -(-end // self._page)
        missing = max(0, last - len(held))
        if begin is not None:
            for page in held[begin // self._page : last]:
                missing += not self._writable(page, begin)
        return missing

    def ensure(self, stream: int, end: int, begin: int | None = None) -> None:
        """Map pages so that positions from `begin` (by default the mapped end) to `end` can be written.

        Nothing is changed if not all can be: WindowError beyond the table, PagesExhaustedError beyond the
        pool.
        """
        held = self._held[stream]
        if self.pages_for(end) > self._table.shape[1]:
            raise WindowError(
                f"stream {stream}",
                found=f"{end} tokens",
                expected=f"at most {self._table.shape[1] * self._page}",
                action="use a larger window or a shorter prompt",
            )
        missing = self.missing(stream, end, begin)
        if missing > len(self._free):
            raise PagesExhaustedError(
                f"stream {stream}",
                found=f"{len(self._free)} free pages",
                expected=f"{missing}",
                action="use a larger pool or fewer streams",
            )
        for index in self._written(held, begin, end):
            if not self._writable(held[index], begin or 0):
                self._replace(stream, index)
        while len(held) < self.pages_for(end):
            self._map(stream, self._take())

    def truncate(self, stream: int, keep: int) -> None:
        """Give back every page that holds none of the first `keep` tokens."""
        held = self._held[stream]
        while len(held) > self.pages_for(keep):
            self._let_go(held.pop())
            self._table[stream, len(held)] = self._null

    def keep(self, stream: int, end: int) -> KeptPages:
        """Hold the pages of a stream's first `end` tokens beyond the stream."""
        pages = tuple(self._held[stream][: self.pages_for(end)])
        for index, page in enumerate(pages):
            self._promised[page].append(min(end - 1, (index + 1) * self._page))
        return KeptPages(pages, end)

    def share(self, stream: int, kept: KeptPages) -> None:
        """Give a stream without pages the kept ones, to read; `ensure` copies what it is about to write."""
        for page in kept.pages:
            self._map(stream, page)

    def usable(self, kept: KeptPages) -> int:
        """How many kept pages a stream that shares them can go on with, without taking a free one."""
        last = kept.pages[-1]
        in_place = not self._streams[last] and all(end < kept.end for end in self._promised[last])
        return len(kept.pages) - (not in_place)

    def release(self, kept: KeptPages) -> None:
        """Hold kept pages no longer."""
        for index, page in enumerate(kept.pages):
            self._promised[page].remove(min(kept.end - 1, (index + 1) * self._page))
            self._give_back_unheld(page)

    def _written(self, held: list[int], begin: int | None, end: int) -> range:
        """Indices of already mapped pages that a write from `begin` to `end` touches."""
        if begin is None:
            return range(0)
        return range(begin // self._page, min(len(held), self.pages_for(end)))

    def _writable(self, page: int, begin: int) -> bool:
        promised = self._promised[page]
        return self._streams[page] == 1 and (not promised or max(promised) <= begin)

    def _replace(self, stream: int, index: int) -> None:
        old, new = self._held[stream][index], self._take()
        if self._copy is not None:
            self._copy(old, new)
        self._held[stream][index] = new
        self._streams[new] += 1
        self._table[stream, index] = new
        self._let_go(old)

    def _take(self) -> int:
        return heapq.heappop(self._free)

    def _map(self, stream: int, page: int) -> None:
        held = self._held[stream]
        self._table[stream, len(held)] = page
        held.append(page)
        self._streams[page] += 1
        self._only_kept.discard(page)

    def _let_go(self, page: int) -> None:
        self._streams[page] -= 1
        self._give_back_unheld(page)

    def _give_back_unheld(self, page: int) -> None:
        if self._streams[page]:
            return
        if self._promised[page]:
            self._only_kept.add(page)
        else:
            self._only_kept.discard(page)
            heapq.heappush(self._free, page)
