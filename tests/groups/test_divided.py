"""Ranks that keep the streams of their own rows of a prompt compute the bits of ranks that keep all."""

import pytest
import torch

from intarsia import api
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


def test_few_rows_are_not_divided():
    def work(group):
        assert group.divided(4096) is None
        group.divide_from = 1024
        return group.divided(1023), group.divided(1024), group.divided(1025)

    assert on_ranks(2, work) == [(None, 512, 528)] * 2
