"""Ranks that keep the streams of their own rows of a prompt compute the bits of ranks that keep all."""

import pytest
import torch

from intarsia import api
from intarsia.kernels.rows import Piece
from intarsia.models.glm5_next.state import StateSettings
from tests.groups.threads import on_ranks


@pytest.mark.parametrize("ranks", [2, 3])
def test_divided_prompts_have_the_same_bits(ranks):
    tokens = [(7 * at) % 4096 for at in range(150)]

    def work(group):
        model = api.load("demo", group=group)
        whole = model.logits(tokens)
        group.divide_from = 64
        sums = []
        add = group.sum_own
        group.sum_own = lambda partial, each: sums.append(each) or add(partial, each)
        return whole, model.logits(tokens), sums

    for whole, divided, sums in on_ranks(ranks, work):
        assert torch.equal(whole, divided)
        # two sums a layer; 160 rows in tiles of 16
        assert sums == [-(-10 // ranks) * 16] * 16


def test_the_mtp_layer_divides_its_rows_too():
    tokens = [(11 * at) % 4096 for at in range(101)]

    def rows_of(state, ids):
        return state.rows([Piece(0, 0, ids, recurrent=False)])

    def work(group):
        model = api.load("demo", group=group)
        found = []
        for divide_from in (None, 64):
            group.divide_from = divide_from
            state = model.new_state(StateSettings(streams=1, window=128, pages=1, page=128))
            state.map_pages(0, range(1))
            hidden = model.hidden(rows_of(state, tokens[:100]), state)
            add, sums = group.sum_own, []
            group.sum_own = lambda partial, each: sums.append(each) or add(partial, each)  # noqa: B023
            found.append(model.mtp_hidden(rows_of(state, tokens[1:]), hidden, state)[0])
            group.sum_own = add
        return found, sums

    for (whole, divided), sums in on_ranks(2, work):
        assert torch.equal(whole[:100], divided[:100])  # what pads them is summed or not, and read by nobody
        assert sums == [64, 64]


def test_few_rows_are_not_divided():
    def work(group):
        assert group.divided(4096) is None
        group.divide_from = 1024
        return group.divided(1023), group.divided(1024), group.divided(1025)

    assert on_ranks(2, work) == [(None, 512, 528)] * 2


def test_nothing_is_divided_where_a_rank_would_have_no_rows():
    """32 rows are two tiles: the third rank would have none."""
    tokens = [(7 * at) % 4096 for at in range(20)]

    def work(group):
        model = api.load("demo", group=group)
        whole = model.logits(tokens)
        group.divide_from = 16
        return group.divided(32), group.divided(33), torch.equal(whole, model.logits(tokens))

    assert on_ranks(3, work) == [(None, 16, True)] * 3
