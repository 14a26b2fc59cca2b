"""Exchanges: order of sums, unequal columns, agreement, and what happens when a rank is not there."""

import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from intarsia.groups.agreement import compare, differences
from intarsia.groups.errors import RankLostError, RankMissingError, RanksDifferError, RanksDivergedError, lost
from intarsia.groups.group import SINGLE
from intarsia.groups.torch_group import TorchGroup
from tests.groups.threads import on_ranks

# Added in any other order these give other float32 numbers.
NUMBERS = [1e8, 1.0, -1e8, 0.5]


def test_partial_sums_are_added_in_rank_order():
    def work(group):
        return group.sum_in_rank_order(torch.full((2, 3), NUMBERS[group.rank]))

    expected = torch.zeros(2, 3) + NUMBERS[0]
    for number in NUMBERS[1:]:
        expected = expected + number
    for result in on_ranks(4, work):
        assert torch.equal(result, expected)
    other = torch.tensor(NUMBERS[::-1]).cumsum(0)[-1]
    assert float(expected[0, 0]) != float(other)


def test_sums_are_left_to_their_reader_only_where_that_can_sum_them():
    def work(group):
        partial = torch.full((2, 3), NUMBERS[group.rank])
        whole = group.sum_in_rank_order(partial)
        plain, left = group.sum_where_read(partial)
        group.peers = SimpleNamespace(few=100, most=100)  # numbers of a CPU do not go over peer memory
        cpu, still = group.sum_where_read(partial)
        return torch.equal(plain, whole) and torch.equal(cpu, whole), left, still

    assert on_ranks(2, work) == [(True, None, None)] * 2
    partial = torch.ones(2, 3)
    assert SINGLE.sum_where_read(partial) == (partial, None)


def test_streams_are_divided_by_default_where_rows_kept_apart_are_fast():
    def work(group):
        return [
            TorchGroup(group._group, torch.device("cpu"), timeout=timedelta(seconds=1), peers=peers).divided(
                4096
            )
            for peers in (None, SimpleNamespace(wide=False), SimpleNamespace(wide=True))
        ]

    assert on_ranks(2, work) == [[None, None, 2048]] * 2


def test_columns_of_unequal_widths_come_side_by_side():
    widths = [3, 2, 1]

    def work(group):
        first = sum(widths[: group.rank])
        own = torch.arange(first, first + widths[group.rank]).float().expand(2, -1)
        return group.gather_columns(own, widths)

    for result in on_ranks(3, work):
        assert result.tolist() == [[0, 1, 2, 3, 4, 5]] * 2


def test_partial_sums_of_another_type_are_refused():
    def work(group):
        with pytest.raises(TypeError, match="float32"):
            group.sum_in_rank_order(torch.zeros(1, dtype=torch.bfloat16))

    on_ranks(2, work)


def test_ranks_that_do_different_steps_are_named():
    def work(group):
        group.check_equal("step", 7)
        with pytest.raises(RanksDivergedError) as refusal:
            group.check_equal("step", 9 if group.rank == 1 else 7)
        return str(refusal.value)

    for message in on_ranks(3, work):
        assert "0000000000000009 on rank 1" in message
        assert "rank 1 differs from the others" in message


def test_two_ranks_have_no_majority():
    def work(group):
        with pytest.raises(RanksDivergedError) as refusal:
            group.check_equal("step", group.rank)
        return refusal.value.action

    assert set(on_ranks(2, work)) == {"no majority says which rank is wrong"}


def test_one_rank_alone_exchanges_nothing():
    partial = torch.randn(2, 3)
    assert SINGLE.sum_in_rank_order(partial) is partial
    assert SINGLE.gather_columns(partial, [3]) is partial
    SINGLE.check_equal("step", 1)


def test_a_rank_that_never_comes_to_an_exchange_is_an_error_in_time():
    store = dist.HashStore()
    patience = timedelta(seconds=1)
    failures = []

    def run(rank):
        options = dist.ProcessGroupGloo._Options()
        options._timeout = timedelta(seconds=20)
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
        group = TorchGroup(
            dist.ProcessGroupGloo(store, rank, 2, options), torch.device("cpu"), timeout=patience
        )
        group.barrier("here")
        if rank == 0:
            try:
                group.barrier("alone")
            except RankLostError as error:
                failures.append(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert "an exchange that failed" in failures[0].found


def test_a_lost_rank_is_told_without_what_gloo_puts_around_it():
    gloo = (
        "[/build/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:63702: Connection reset by peer. "
        "This is typically caused by a remote worker hanging or bugs in the application."
    )
    told = "an exchange that failed: Read error [127.0.0.1]:63702: Connection reset by peer"
    assert lost(RuntimeError(gloo), 0, 2).found == told
    assert lost(RuntimeError(" "), 0, 2).found == "an exchange that failed: no reason given"


def agree(ranks, facts, patience=5.0):
    """What each rank is told when it compares its facts."""
    store = dist.HashStore()
    told = [None] * ranks

    def run(rank):
        try:
            compare(store, "settings", rank, ranks, facts(rank), timedelta(seconds=patience))
        except (RanksDifferError, RankMissingError) as error:
            told[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks) if facts(rank)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return told


def test_ranks_with_equal_facts_go_on():
    assert agree(3, lambda rank: {"dtype": "float32", "ranks": 3}) == [None] * 3


def test_different_facts_are_refused_on_all_ranks_with_all_values():
    told = agree(2, lambda rank: {"dtype": "float32", "window": 512 + rank, "checkpoint": f"c{rank}"})
    for error in told:
        assert {item.where for item in error.violations} == {"window", "checkpoint"}
        assert "512 on rank 0, 513 on rank 1" in str(error)


def test_a_rank_that_never_comes_is_named():
    told = agree(3, lambda rank: {"x": 1} if rank != 1 else {}, patience=0.5)
    assert told[0].where == told[2].where == "rank 1"
    assert "with the same --tp" in told[0].action


def test_a_fact_that_only_one_rank_has_differs():
    assert [item.found for item in differences({0: {"a": "1"}, 1: {}})] == ["1 on rank 0, nothing on rank 1"]


def test_a_sum_over_peer_memory_that_failed_is_told_before_another_exchange_waits():
    def work(group):
        if group.rank:
            return None  # gone: nobody answers a gather
        group.peers = SimpleNamespace(failed=torch.ones(1, dtype=torch.int32))
        with pytest.raises(RankLostError, match="did not come in time to a sum over peer memory"):
            group.check_equal("step 7", 5)
        with pytest.raises(RankLostError):
            group.barrier("after it")
        return group.failure

    assert isinstance(on_ranks(2, work)[0], RankLostError)
