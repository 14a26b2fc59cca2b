"""Pages are handed out in one order, given back when nobody holds them, and never written under a reader."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.engine.errors import PagesExhaustedError, WindowError
from intarsia.engine.pages import KeptPages, PagePool

PAGE, PAGES, WINDOW_PAGES, STREAMS = 4, 12, 6, 3


def table(streams=STREAMS):
    return torch.full((streams, WINDOW_PAGES), PAGES, dtype=torch.int32)


def test_the_lowest_free_page_comes_first():
    mapped = table()
    pool = PagePool(mapped, PAGES, PAGE)
    pool.ensure(0, 5)
    pool.ensure(1, 4)
    pool.ensure(0, 9)
    assert mapped.tolist() == [[0, 1, 3, 12, 12, 12], [2] + [12] * 5, [12] * 6]
    pool.truncate(0, 4)
    pool.ensure(2, 12)
    assert mapped.tolist() == [[0] + [12] * 5, [2] + [12] * 5, [1, 3, 4, 12, 12, 12]]
    assert pool.free == 7
    assert [pool.held(stream) for stream in range(3)] == [1, 1, 3]


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (4, 1), (5, 2), (24, 6)])
def test_pages_hold_whole_tokens(tokens, pages):
    mapped = table()
    pool = PagePool(mapped, PAGES, PAGE)
    assert pool.pages_for(tokens) == pages
    assert pool.missing(0, tokens) == pages
    pool.ensure(0, tokens)
    assert pool.free == PAGES - pages
    assert (mapped[0] < PAGES).sum() == pages
    pool.ensure(0, tokens)
    assert pool.free == PAGES - pages
    pool.truncate(0, tokens)
    assert pool.free == PAGES - pages
    pool.truncate(0, 0)
    assert pool.free == PAGES
    assert (mapped == PAGES).all()


def test_truncating_keeps_the_page_of_the_last_token():
    mapped = table()
    pool = PagePool(mapped, PAGES, PAGE)
    pool.ensure(0, 20)
    for keep, held in ((17, 5), (16, 4), (15, 4), (13, 4), (12, 3), (1, 1), (0, 0)):
        pool.truncate(0, keep)
        assert pool.held(0) == held
        assert mapped[0].tolist() == [*range(held)] + [PAGES] * (WINDOW_PAGES - held)


def test_a_window_is_a_limit_and_nothing_is_mapped_beyond_it():
    mapped = table()
    pool = PagePool(mapped, PAGES, PAGE)
    pool.ensure(1, 3)
    before = mapped.clone()
    with pytest.raises(WindowError) as caught:
        pool.ensure(1, 25)
    assert (caught.value.where, caught.value.found, caught.value.expected) == (
        "stream 1",
        "25 tokens",
        "at most 24",
    )
    assert torch.equal(mapped, before)
    assert pool.free == PAGES - 1


def test_a_pool_is_a_limit_and_nothing_is_mapped_in_part():
    mapped = table()
    pool = PagePool(mapped, PAGES, PAGE)
    pool.ensure(0, 20)
    pool.ensure(1, 20)
    before = mapped.clone()
    with pytest.raises(PagesExhaustedError) as caught:
        pool.ensure(2, 9)
    assert (caught.value.where, caught.value.found, caught.value.expected) == (
        "stream 2",
        "2 free pages",
        "3",
    )
    assert torch.equal(mapped, before)
    assert pool.free == 2
    pool.ensure(2, 8)
    assert pool.free == 0


class Ledger:
    """Runs a pool over a memory of plain numbers, and remembers what everybody must read from it."""

    def __init__(self) -> None:
        self.table = table()
        self.memory = [[0] * PAGE for _ in range(PAGES)]
        self.pool = PagePool(self.table, PAGES, PAGE, copy=self._copy)
        self.streams: list[list[int]] = [[] for _ in range(STREAMS)]
        self.kept: list[tuple[KeptPages, list[int]]] = []
        self.written = 0

    def _copy(self, old: int, new: int) -> None:
        self.memory[new] = list(self.memory[old])

    def free(self) -> list[int]:
        held = {int(page) for page in self.table.flatten() if page < PAGES}
        held |= {page for kept, _ in self.kept for page in kept.pages}
        return [page for page in range(PAGES) if page not in held]

    def write(self, stream: int, begin: int, count: int) -> None:
        """New values at `begin` and after it; or a refusal that leaves everything as it was."""
        end, free, before = begin + count, self.free(), self.table.clone()
        missing = self.pool.missing(stream, end, begin)
        try:
            self.pool.ensure(stream, end, begin)
        except (WindowError, PagesExhaustedError):
            assert torch.equal(self.table, before)
            assert end > WINDOW_PAGES * PAGE or missing > len(free)
            return
        taken = {int(page) for page in self.table[stream]} - {int(page) for page in before[stream]} - {PAGES}
        assert sorted(taken) == free[:missing]  # exactly those it said, and the lowest ones
        values = self.streams[stream]
        for position in range(begin, end):
            self.written += 1
            values[position : position + 1] = [self.written]
            self.memory[int(self.table[stream, position // PAGE])][position % PAGE] = self.written

    def keep(self, stream: int, end: int) -> None:
        self.kept.append((self.pool.keep(stream, end), self.streams[stream][: end - 1]))

    def share(self, stream: int, index: int) -> None:
        """An empty stream goes on from a kept state; it writes the last row, which was not promised."""
        kept, values = self.kept[index]
        needed = self.pool.usable(kept)
        free = self.pool.free
        if len(kept.pages) - needed > free:
            return
        self.pool.share(stream, kept)
        self.streams[stream] = list(values)
        self.write(stream, kept.end - 1, 1)
        assert self.pool.free == free - (len(kept.pages) - needed)

    def truncate(self, stream: int, keep: int) -> None:
        self.pool.truncate(stream, keep)
        del self.streams[stream][keep:]

    def release(self, index: int) -> None:
        self.pool.release(self.kept.pop(index)[0])

    def check(self) -> None:
        for stream, values in enumerate(self.streams):
            pages = self.table[stream].tolist()
            assert [self.memory[pages[p // PAGE]][p % PAGE] for p in range(len(values))] == values
            held = self.pool.held(stream)
            assert held == self.pool.pages_for(len(values))
            assert all(page == PAGES for page in pages[held:])
        for kept, values in self.kept:
            assert [self.memory[kept.pages[p // PAGE]][p % PAGE] for p in range(len(values))] == values
        assert self.pool.free == len(self.free())
        streams = {int(page) for page in self.table.flatten() if page < PAGES}
        assert self.pool.only_kept == {page for kept, _ in self.kept for page in kept.pages} - streams


OPERATION = st.tuples(
    st.sampled_from("wwwwtksr"), st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 9)
)


@given(st.lists(OPERATION, max_size=60))
@settings(max_examples=300, deadline=None)
def test_everybody_reads_what_they_wrote_or_were_promised(operations):
    """Any order of writes, truncations, kept states, resumed streams and releases, against plain lists."""
    ledger = Ledger()
    for operation, first, second, count in operations:
        stream = first % STREAMS
        length = len(ledger.streams[stream])
        if operation == "w":
            ledger.write(stream, length - second % (length + 1) if second % 3 == 0 else length, 1 + count)
        elif operation == "t":
            ledger.truncate(stream, second % (length + 1))
        elif operation == "k" and length:
            ledger.keep(stream, 1 + second % length)
        elif operation == "s" and ledger.kept and not length:
            ledger.share(stream, second % len(ledger.kept))
        elif operation == "r" and ledger.kept:
            ledger.release(second % len(ledger.kept))
        ledger.check()
    for stream in range(STREAMS):
        ledger.truncate(stream, 0)
    while ledger.kept:
        ledger.release(0)
    ledger.check()
    assert ledger.pool.free == PAGES
    assert (ledger.table == PAGES).all()
