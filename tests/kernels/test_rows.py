"""How rows of several streams are laid out, addressed and remembered."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from intarsia.core.rows import pad_rows, padded_count
from intarsia.kernels.paging import physical_rows, write_rows
from intarsia.kernels.ring import earlier, remember
from intarsia.kernels.rows import NO_STREAM, Piece, Segment, rows_of
from tests.kernels.steps import page_table, randn, step


def test_recurrent_pieces_come_first_and_padding_last():
    table = page_table(3, 4)
    rows = rows_of(
        [
            Piece(2, 5, [7, 8, 9], recurrent=False),
            Piece(0, 11, [1], recurrent=True),
            Piece(1, 0, [4, 5], recurrent=False),
        ],
        table,
    )
    assert rows.tokens.tolist() == [1, 7, 8, 9, 4, 5] + [0] * 10
    assert rows.positions[:6].tolist() == [11, 5, 6, 7, 0, 1]
    assert rows.streams.tolist() == [0, 2, 2, 2, 1, 1] + [NO_STREAM] * 10
    assert rows.starts.tolist() == [0, 1, 4, 6]
    assert rows.recurrent_segments == 1
    assert rows.padding.tolist() == [False] * 6 + [True] * 10
    assert rows.segments() == [
        Segment(first=0, count=1, stream=0, position=11, recurrent=True),
        Segment(first=1, count=3, stream=2, position=5, recurrent=False),
        Segment(first=4, count=2, stream=1, position=0, recurrent=False),
    ]
    assert [segment.end for segment in rows.segments()] == [12, 8, 2]
    assert rows.page_table is table


@pytest.mark.parametrize(("count", "expected"), [(0, 16), (1, 16), (15, 16), (16, 16), (17, 32), (160, 160)])
def test_rows_are_padded_to_multiples_of_16(count, expected):
    assert padded_count(count) == expected
    x = randn(count, 3)
    got = pad_rows(x, 7.0)
    assert got.shape == (expected, 3)
    assert torch.equal(got[:count], x)
    assert (got[count:] == 7).all()
    if count == expected:
        assert got is x


@given(st.permutations(range(6)), st.integers(0, 5), st.integers(1, 12))
def test_values_land_in_the_pages_that_the_table_names(order, first, count):
    page, table = 3, page_table(2, 3, order)
    cache = torch.full((7, page, 2), -1.0)
    count = min(count, 9 - first)
    values = torch.arange(2.0 * count).view(-1, 2)
    write_rows(cache, pad_rows(values, torch.nan), step((1, first, count), table=table))
    for row in range(count):
        position = first + row
        assert torch.equal(cache[table[1, position // page], position % page], values[row])
    assert (cache != -1).any(-1).sum() == count
    where = physical_rows(table[1], torch.arange(first, first + count), page)
    assert torch.equal(cache.view(-1, 2)[where], values)


@given(st.integers(1, 9), st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_a_ring_holds_the_latest_entries(length, counts):
    ring = torch.full((length, 1), torch.nan)
    position = 0
    for count in counts:
        segment = Segment(first=0, count=count, stream=0, position=position, recurrent=False)
        got = earlier(ring, segment, length)
        expected = [max(p, 0) for p in range(position - length, position)]
        assert got.flatten().tolist() == [float(p) for p in expected]
        remember(ring, torch.arange(position, position + count).view(-1, 1).float(), segment)
        position += count
