"""Ranks that reach only their neighbours: sums, and messages to all."""

import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from intarsia.groups import agreement
from intarsia.groups.agreement import compare
from intarsia.groups.group import add_in_order
from tests.groups.rings import on_ring

NUMBERS = [1e8, 1.0, -1e8, 0.5, 3e7, -1.5]


@pytest.mark.parametrize("closed", [True, False], ids=["ring", "line"])
@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_sums_have_the_bits_of_adding_in_rank_order(ranks, closed):
    partials = [torch.full((3, 4), NUMBERS[rank]) + torch.arange(4) * 0.1 for rank in range(ranks)]

    def work(group):
        return [group.sum_in_rank_order(partials[group.rank] * (call + 1)) for call in range(5)]

    for sums in on_ring(ranks, work, closed=closed):
        for call, found in enumerate(sums):
            assert torch.equal(found, add_in_order([partial * (call + 1) for partial in partials]))


def test_large_tensors_and_sums_begun_together_arrive_whole():
    def work(group):
        wholes = [torch.arange(600_000.0) + 1000 * group.rank + piece for piece in range(4)]
        waiting = [group.begin_sum(whole) for whole in wholes]
        return [wait() for wait in waiting]

    for found in on_ring(4, work):
        for piece, total in enumerate(found):
            assert torch.equal(total, torch.arange(600_000.0) * 4 + 6000 + 4 * piece)


def test_other_types_and_shapes_travel():
    def work(group):
        return [
            group.gather(torch.tensor(group.rank)),
            group.gather(torch.full((2, 0), 1.0)),
            group.gather(torch.tensor([group.rank + 0.5], dtype=torch.bfloat16)),
            group.gather_columns(torch.full((1, 2 - group.rank), float(group.rank)), [2, 1]),
        ]

    for numbers, empty, halves, columns in on_ring(2, work):
        assert [int(number) for number in numbers] == [0, 1]
        assert empty[1].shape == (2, 0)
        assert [float(half) for half in halves] == [0.5, 1.5]
        assert columns.tolist() == [[0, 0, 1]]


def test_the_store_tells_everybody_and_forgets():
    def work(group):
        store = group.store
        if group.rank == 1:
            store.set("word", "à propos")
        word = store.get("word").decode()
        compare(store, "facts", group.rank, group.ranks, {"x": 1}, timedelta(seconds=10))
        if group.rank == 2:
            store.delete_key("word")
        group.barrier("forgotten")
        with pytest.raises(TimeoutError, match="no word"):
            store.wait(["word"], timedelta(seconds=0.05))
        group.barrier("all have looked")
        return word

    assert on_ring(4, work) == ["à propos"] * 4


def test_an_entry_is_slept_for_longer_than_one_wait(monkeypatch):
    monkeypatch.setattr(agreement, "LONGEST_WAIT", timedelta(seconds=0.05))

    def work(group):
        if group.rank == 0:
            time.sleep(0.4)
            group.store.set("late", "word")
        word = agreement.await_entry(group.store, "late")
        group.barrier("all have it")
        return word

    assert on_ring(2, work) == [b"word"] * 2
    store = dist.HashStore()
    threading.Timer(0.3, lambda: store.set("late", "word")).start()
    assert agreement.await_entry(store, "late") == b"word"
