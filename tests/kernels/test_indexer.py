"""Pooling, scoring and selection against loops over plain numbers."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.kernels.errors import KernelError
from intarsia.kernels.indexer import launch, pool_keys, score_pools, select_tokens, selected_width
from tests.kernels.steps import padded, page_table, randn, step

WIDTH = 8


def naive_pools(keys, gates, ape):
    """Pooled keys [complete groups, D], channel by channel."""
    group = ape.shape[0]
    pools = []
    for first in range(0, keys.shape[0] - group + 1, group):
        pool = []
        for channel in range(keys.shape[1]):
            logits = [float(gates[first + j, channel] + ape[j, channel]) for j in range(group)]
            powers = [math.exp(x - max(logits)) for x in logits]
            pool.append(sum(p / sum(powers) * float(keys[first + j, channel]) for j, p in enumerate(powers)))
        pools.append(pool)
    return torch.tensor(pools, dtype=torch.float64).view(-1, keys.shape[1])


def naive_score(q, weights, pool):
    """One pool's score for one row: q [H, D], weights [H], pool [D], all double."""
    heads, width = q.shape
    return sum(
        float(weights[h]) * heads**-0.5 * max(float(q[h] @ pool) * width**-0.5, 0.0) for h in range(heads)
    )


def naive_selection(scores, position, top, group):
    """The positions one row attends to; `scores` of the pools it sees."""
    best = sorted(range(len(scores)), key=lambda p: (-scores[p], p))[: top // group]
    tail = range((position + 1) // group * group, position + 1)
    return sorted(p * group + j for p in best for j in range(group)) + list(tail)


def empty_cache(pages, page, group):
    cache = torch.full((pages + 1, page // group, WIDTH), torch.nan)
    cache[-1] = 0
    return cache


def pooled(cache, table, count):
    """The first `count` pooled keys of stream 0."""
    return cache[table[0].long()].flatten(0, 1)[:count]


@pytest.mark.parametrize("group", [1, 2, 4, 8])
@pytest.mark.parametrize("counts", [(61,), (1,) * 61, (3, 1, 7, 2, 48), (4, 8, 16, 33)])
def test_pooling_in_pieces(group, counts):
    """Page borders, groups finished by a later piece, and a poisoned tail and cache."""
    keys, gates, ape = randn(61, WIDTH), 2 * randn(61, WIDTH, seed=1), randn(group, WIDTH, seed=2)
    table = page_table(1, 8, [5, 0, 7, 2, 1, 6, 3, 4])
    cache, tail = empty_cache(8, 8, group), torch.full((1, group - 1 + 1, 2 * WIDTH), torch.nan)
    begin = 0
    for count in counts:
        rows = step((0, begin, count), table=table)
        part = slice(begin, begin + count)
        pool_keys(padded(keys[part]), padded(gates[part]), ape, tail, cache, rows)
        begin += count
    complete = 61 // group
    torch.testing.assert_close(
        pooled(cache, table, complete).double(), naive_pools(keys, gates, ape), rtol=1e-5, atol=1e-6
    )
    assert pooled(cache, table, 64 // group)[complete:].isnan().all()
    assert (cache[-1] == 0).all()


@pytest.mark.parametrize("group", [2, 4, 8])
def test_a_pool_completed_by_rows_that_are_taken_back_is_done_again(group):
    keys, gates, ape = randn(40, WIDTH), randn(40, WIDTH, seed=1), randn(group, WIDTH, seed=2)
    table = page_table(1, 8)
    cache, tail = empty_cache(8, 8, group), torch.full((1, group - 1 + 8, 2 * WIDTH), torch.nan)

    def run(k, g, position):
        rows = step((0, position, len(k)), recurrent=True, table=table)
        pool_keys(padded(k), padded(g), ape, tail, cache, rows)

    position = 0
    for kept in (1, 3, 2, 8, 1, 1, 5, 4, 7, 8):
        wrong = 8 - kept
        k = torch.cat([keys[position : position + kept], torch.full((wrong, WIDTH), 1e6)])
        g = torch.cat([gates[position : position + kept], torch.full((wrong, WIDTH), 50.0)])
        run(k, g, position)
        position += kept
    assert position == 40
    got = pooled(cache, table, 40 // group)
    torch.testing.assert_close(got.double(), naive_pools(keys, gates, ape), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("heads", [1, 2, 16])
@pytest.mark.parametrize(("group", "page"), [(1, 8), (2, 8), (4, 4), (4, 16), (8, 32)])
def test_scores(heads, group, page):
    """Two streams of different lengths; places without a pool are NaN and must stay out of sight."""
    pages = 64 // page
    table = page_table(2, pages)
    cache = empty_cache(2 * pages, page, group)
    pools = [randn(n // group, WIDTH, seed=n) for n in (53, 30)]
    for stream, own in enumerate(pools):
        for p, key in enumerate(own):
            cache[table[stream, p * group // page], p % (page // group)] = key
    q, weights = randn(33, heads, WIDTH, seed=3), randn(33, heads, seed=4)
    rows = step((0, 30, 23), (1, 20, 10), table=table)
    scores = score_pools(padded(q), padded(weights), cache, rows, group)
    assert scores.shape == (48, 64 // group)
    for row in range(33):
        stream, position = int(rows.streams[row]), int(rows.positions[row])
        seen = (position + 1) // group
        own = pools[stream][:seen].double()
        expected = [naive_score(q[row].double(), weights[row].double(), pool) for pool in own]
        assert scores[row, :seen].tolist() == pytest.approx(expected, rel=1e-4, abs=1e-6)
        assert (scores[row, seen:] == -torch.inf).all()
    assert (scores[33:] == -torch.inf).all()


def test_scale_of_scores():
    """Factors that no selection can show: H^-1/2 on the head weights, D^-1/2 on the products."""
    cache = torch.ones(9, 2, WIDTH)
    scores = score_pools(torch.ones(16, 4, WIDTH), torch.ones(16, 4), cache, step((0, 0, 16)), 4)
    torch.testing.assert_close(scores[15, :4], torch.full((4,), 4 * 4**-0.5 * WIDTH * WIDTH**-0.5))


def test_negative_products_score_exactly_zero():
    cache = -torch.ones(9, 2, WIDTH)
    scores = score_pools(torch.ones(16, 4, WIDTH), torch.ones(16, 4), cache, step((0, 0, 16)), 4)
    assert (scores[15, :4] == 0).all()


def check_selection(scores, positions, top, group):
    """`select_tokens` on rows whose visible scores are given, against the loop."""
    width = max(map(len, scores)) + 2
    table = torch.full((len(scores), width), -torch.inf)
    for row, own in enumerate(scores):
        table[row, : len(own)] = torch.tensor(own)
    got = select_tokens(table, torch.tensor(positions, dtype=torch.int32), top, group)
    assert got.shape == (len(scores), selected_width(top, group))
    assert got.dtype == torch.int32
    for row, own in enumerate(scores):
        chosen = got[row][got[row] >= 0].tolist()
        assert chosen == naive_selection(own, positions[row], top, group)


TIED = (-2.0, -0.5, 0.0, -0.0, 0.5, 2.0)


@given(
    group=st.sampled_from([1, 2, 3, 4, 8]),
    kept=st.integers(1, 6),
    rows=st.lists(
        st.tuples(st.integers(0, 40), st.lists(st.sampled_from(TIED), min_size=41, max_size=41)),
        min_size=1,
        max_size=4,
    ),
)
@settings(max_examples=100, deadline=None)
def test_selection_with_many_ties(group, kept, rows):
    positions = [position for position, _ in rows]
    scores = [values[: (position + 1) // group] for position, values in rows]
    check_selection(scores, positions, kept * group, group)


@pytest.mark.parametrize("group", [1, 2, 4, 8])
def test_selection_of_random_scores(group):
    positions = list(range(100))
    scores = [randn(100, seed=p)[: (p + 1) // group].tolist() for p in positions]
    check_selection(scores, positions, 4 * group, group)


def test_a_row_on_the_last_token_of_a_pool_sees_itself_only_if_its_pool_is_kept():
    scores = torch.tensor([[1.0, 3.0, 2.0, -torch.inf], [1.0, 2.0, 3.0, -torch.inf]])
    got = select_tokens(scores, torch.tensor([11, 11], dtype=torch.int32), 4, 4)
    assert got[0][got[0] >= 0].tolist() == [4, 5, 6, 7]
    assert got[1][got[1] >= 0].tolist() == [8, 9, 10, 11]


def test_a_selection_has_one_width_however_small_the_window():
    small = select_tokens(torch.tensor([[0.5]]), torch.tensor([5], dtype=torch.int32), 32, 4)
    assert small.tolist() == [[0, 1, 2, 3] + [-1] * 28 + [4, 5, -1]]


def test_a_window_of_more_pools_than_the_kernels_count_is_refused():
    """512 of each 8,192 pools reach the last choice, which counts up to 32,767."""
    assert launch.chunks_of(63 * 8192, 512, 4) == (8192, 63)
    with pytest.raises(KernelError, match=r"2,064,388 tokens.*at most 516,096 pools.*use a shorter window"):
        launch.chunks_of(63 * 8192 + 1, 512, 4)
