"""Ranks that reach only their neighbours: sums, messages, and who is to blame when a line breaks."""

import json
import socket
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from intarsia.core.errors import UsageError
from intarsia.groups import agreement
from intarsia.groups.agreement import compare
from intarsia.groups.errors import (
    LineError,
    RankLostError,
    RankMissingError,
    RanksDifferError,
    RendezvousError,
)
from intarsia.groups.group import add_in_order
from intarsia.groups.ring.frames import HEADER_BYTES, Header, Kind, unpack
from intarsia.groups.ring.group import RingGroup
from intarsia.groups.ring.line import Line
from intarsia.groups.ring.meet import Neighbours, meet, neighbours
from intarsia.groups.ring.route import Route
from intarsia.groups.ring.store import open_ring
from intarsia.groups.status import Tally

CPU = torch.device("cpu")
HOST = "127.0.0.1"


def free_ports(count):
    listeners = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


def around(rank, ports, closed=True):
    ranks = len(ports)
    before = (HOST, ports[rank - 1]) if closed or rank else None
    after = (HOST, ports[(rank + 1) % ranks]) if closed or rank < ranks - 1 else None
    return Neighbours(before, after)


def on_ring(ranks, work, *, closed=True, timeout=10.0, absent=()):
    """What `work(group)` gives or raises on every rank, each a thread with lines of its own."""
    ports, results = free_ports(ranks), [None] * ranks

    def run(rank):
        store = None
        try:
            status = Tally()
            store = open_ring(rank, ranks, around(rank, ports, closed), ports[rank], status, timeout)
            store.settle()
            results[rank] = work(RingGroup(store, CPU, status))
        except Exception as error:
            results[rank] = error
        if store is not None:
            store.lines.close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks) if rank not in absent]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


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


def test_different_counts_are_refused_with_both():
    ports, told = free_ports(2), [None, None]

    def run(rank):
        try:
            meet(rank, 2 + rank, around(rank, ports), ports[rank], 10.0)
        except (RanksDifferError, RankMissingError) as error:
            told[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert all(isinstance(error, RanksDifferError) for error in told)
    assert "2 on rank 0, 3 on rank 1" in str(told[0])
    assert time.monotonic() - begin < 5


def test_a_wrong_neighbour_is_refused():
    ports, told = free_ports(3), [None, None]

    def run(place, rank):
        try:
            meet(rank, 3, Neighbours((HOST, 1), (HOST, ports[1 - place])), ports[place], 5.0)
        except (RanksDifferError, RankMissingError) as error:
            told[place] = error

    threads = [threading.Thread(target=run, args=arguments) for arguments in ((0, 0), (1, 2))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert "rank 2" in str(told[0])
    assert "rank 1" in str(told[0])


def test_somebody_elses_call_is_hung_up_on():
    ports = free_ports(2)

    def shout():
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                with socket.create_connection((HOST, ports[0])) as connection:
                    connection.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
                    return connection.recv(100)
            except ConnectionResetError:
                return b""
            except OSError:
                time.sleep(0.02)
        return b""

    results = [None, None]

    def run(rank):
        if rank == 1:
            shout()
        results[rank] = meet(rank, 2, around(rank, ports), ports[rank], 20.0)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert all(set(made) == {"prev", "next"} for made in results)
    for made in results:
        for connection in made.values():
            connection.close()


def test_a_port_in_use_and_an_unknown_address_are_told():
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(RendezvousError, match="a port in use"):
            meet(1, 2, Neighbours((HOST, port), None), port, 1.0)


def test_addresses_of_neighbours():
    assert neighbours("10.0.0.1,10.0.0.2:40", 7) == Neighbours(("10.0.0.1", 7), ("10.0.0.2", 40))
    assert neighbours(",[fe80::1%eth0]:9", 7) == Neighbours(None, ("fe80::1%eth0", 9))
    assert neighbours("fe80::2,", 7) == Neighbours(("fe80::2", 7), None)
    for wrong in ("", "a", "a,b,c", ",", "a:0,b", "a:99999,b"):
        with pytest.raises(UsageError):
            neighbours(wrong, 7)
    with pytest.raises(UsageError, match="only rank 2 may have none"):
        meet(1, 3, Neighbours(("a", 1), None), 7, 1.0)


@pytest.mark.parametrize("ranks", range(2, 9))
@pytest.mark.parametrize("closed", [True, False])
def test_every_rank_is_reached_exactly_once(ranks, closed):
    for rank in range(ranks):
        hops = Route(rank, ranks, closed).hops
        ahead = [(rank + step) % ranks for step in range(1, hops["next"] + 1)]
        behind = [(rank - step) % ranks for step in range(1, hops["prev"] + 1)]
        assert sorted(ahead + behind) == [other for other in range(ranks) if other != rank]
        if closed:
            assert max(hops.values()) == ranks // 2


def test_a_message_may_come_in_crumbs_and_leave_in_parts():
    here, there = socket.socketpair()
    woken = []
    line = Line(here, lambda: woken.append(1))
    payload = bytes(range(256)) * 8000
    line.send(Header(Kind.PIECE, 1, 0, 5, len(payload)), payload)
    assert line.blocked
    assert woken
    there.setblocking(False)
    received = b""
    while len(received) < HEADER_BYTES + len(payload):
        line.flush()
        try:
            received += there.recv(70_001)
        except BlockingIOError:
            continue
    assert unpack(received[:HEADER_BYTES]) == Header(Kind.PIECE, 1, 0, 5, len(payload))
    assert received[HEADER_BYTES:] == payload
    other = Line(there, lambda: None)
    empty = Header(Kind.BEAT, 2, 3, 0, 0)
    for crumb in (empty.packed()[:10], empty.packed()[10:] + received[:30], received[30:60]):
        here.send(crumb)
    assert other.read() == [(empty, bytearray())]
    here.close()
    with pytest.raises(EOFError):
        other.read()
    there.close()


def test_what_is_no_message_is_refused():
    with pytest.raises(ValueError, match="no message"):
        unpack(b"GET / HTTP/1.1\r\nHost: h\r\n"[:HEADER_BYTES])
    with pytest.raises(ValueError, match="no message"):
        unpack(Header(Kind.PIECE, 1, 0, 0, 1 << 40).packed())
    assert json.loads(json.dumps(int(Kind.BYE))) == 7
