"""A ring whose ranks or lines break: who is to blame is told on all, in time."""

import socket
import threading
import time
from datetime import timedelta

import pytest
import torch

from intarsia.groups.errors import (
    LineError,
    RankLostError,
    RankMissingError,
)
from tests.groups.rings import on_ring


def test_a_rank_that_breaks_off_is_named_by_all_with_what_each_was_doing():
    def work(group):
        group.check_equal(f"step 7 of rank {group.rank}", 1)
        group.barrier("all at work")
        if group.rank == 2:
            group.store.lines._report = lambda culprit, text: None  # the dead blame nobody
            for line in group.store.lines._lines.values():
                line.socket.shutdown(socket.SHUT_RDWR)
            return
        for _ in range(2):
            group.gather(torch.zeros(1))
        return

    for rank, error in enumerate(on_ring(5, work)):
        if rank != 2:
            assert isinstance(error, RankLostError)
            assert error.where == "rank 2"
            assert all(f"rank {number} " in error.action for number in range(5))
            assert "waits for the other ranks: all at work" in error.action


def test_a_rank_that_does_not_come_to_an_exchange_is_named_in_time():
    def work(group):
        group.barrier("all here")
        if group.rank == 1:
            time.sleep(2.5)
            return None
        begin = time.monotonic()
        with pytest.raises(RankLostError) as refusal:
            group.gather(torch.zeros(1))
        return refusal.value, time.monotonic() - begin

    results = on_ring(4, work, timeout=1.0)
    for error, seconds in (results[rank] for rank in (0, 2, 3)):
        assert error.where == "rank 1"
        assert seconds < 5


def test_a_slow_rank_that_shows_life_is_waited_for():
    def work(group):
        for _ in range(8 if group.rank == 0 else 0):
            time.sleep(0.2)
            group._status.alive()
        return [int(part) for part in group.gather(torch.tensor(group.rank))]

    assert on_ring(3, work, timeout=1.0) == [[0, 1, 2]] * 3


def test_a_line_that_goes_dead_is_noticed_while_nobody_exchanges():
    def work(group):
        noticed = threading.Event()
        group.when_lost(noticed.set)
        group.barrier("all here")
        if group.rank == 1:
            group.store.lines._say_beat = lambda: (
                None
            )  # a machine that is gone says nothing, not even goodbye
            group.store.lines._check_silence = lambda now: None
            time.sleep(2.5)
            return None
        assert noticed.wait(5)
        return group.store.lines.failure

    results = on_ring(3, work, timeout=1.0)
    for failure in (results[0], results[2]):
        assert failure.culprit == 1
        assert "the line between them is down" in str(failure)


def test_waiting_for_a_rank_that_has_left_ends():
    def work(group):
        if group.rank == 0:
            return None
        with pytest.raises(LineError, match="ended") as refusal:
            group.store.wait(["never"], timedelta(seconds=30))
        return refusal.value.culprit

    assert on_ring(3, work)[1] in (0, 2)


def test_a_rank_that_never_comes_is_named_by_all():
    results = on_ring(4, lambda group: group.barrier("all"), timeout=1.0, absent=(2,))
    for rank in (0, 1, 3):
        error = results[rank]
        assert isinstance(error, RankMissingError | RankLostError | LineError)
        assert (error.culprit if isinstance(error, LineError) else error.where) in (2, "rank 2")
