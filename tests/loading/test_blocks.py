"""Cutting ranges of files into blocks: every byte of every range lies where the cut says, read once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.loading.blocks import GAP, Ranges, cut

FILES = [np.random.default_rng(seed).integers(0, 256, 6000, dtype=np.uint8) for seed in range(2)]

ranges = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 5000), st.integers(1, 900)), min_size=1, max_size=30
)


def carried_out(made, size):
    """Blocks with what the reads put there, and how often each byte was put."""
    blocks: dict[int, np.ndarray] = {}
    reads, runs = made.reads, made.runs
    for item, block, place, offset, length in zip(*(part.tolist() for part in reads), strict=True):
        assert 0 <= place < place + length <= size
        where = blocks.setdefault(block, np.full(size, -1))
        assert (where[place : place + length] == -1).all(), "a place is read into twice"
        begin = int(runs.begin[item]) + offset
        assert begin + length <= runs.end[item]
        assert begin % 64 == place % 64
        where[place : place + length] = FILES[runs.shard[item]][begin : begin + length]
    return blocks


@given(ranges, st.sampled_from([1024, 4096]), st.sampled_from([0, 64, 960, 5120]), st.booleans())
def test_every_byte_of_every_range_lies_where_the_cut_says(wanted, size, start, ordered):
    if ordered:
        wanted = sorted(wanted)
    shard, begin, length = np.array(wanted, dtype=np.int64).T
    made = cut(Ranges(shard, begin, begin + length), size, start)
    blocks = carried_out(made, size)
    done = [0] * len(wanted)
    numbers = []
    for item, block, place, offset, count in zip(*(part.tolist() for part in made.pieces), strict=True):
        file, first, _ = wanted[item]
        assert offset == done[item], "pieces of a range come in order"
        done[item] += count
        numbers.append(block)
        expected = FILES[file][first + offset : first + offset + count]
        assert (blocks[block][place : place + count] == expected).all()
    assert done == length.tolist()
    assert numbers == sorted(numbers)
    assert min(blocks) >= start // size
    assert made.stop % 64 == 0
    assert made.stop <= start + int((length + GAP + 128).sum())


def test_what_follows_in_a_file_is_one_read_and_what_does_not_is_its_own():
    begin = np.array([100, 200, 200 + 50 + GAP, 2000, 1900, 3000])
    end = np.array([200, 250, 800, 2100, 1950, 3100])
    shard = np.array([0, 0, 0, 0, 0, 1])
    runs = cut(Ranges(shard, begin, end), 1 << 16, 0).runs
    assert list(zip(runs.shard, runs.begin, runs.end, strict=True)) == [
        (0, 100, 800),
        (0, 2000, 2100),
        (0, 1900, 1950),
        (1, 3000, 3100),
    ]


@pytest.mark.parametrize("count", [0, 1])
def test_the_stream_goes_on_where_the_last_cut_stopped(count):
    one = Ranges(*(np.array([value] * count, dtype=np.int64) for value in (0, 10, 20)))
    made = cut(one, 1024, 64)
    assert made.stop == 64 + 64 * count
    assert len(made.pieces.item) == count
