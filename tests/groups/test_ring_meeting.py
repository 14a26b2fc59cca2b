"""How a ring comes together: counts, neighbours, addresses, and messages of strangers."""

import json
import socket
import threading
import time

import pytest

from intarsia.core.errors import UsageError
from intarsia.groups.errors import (
    RankMissingError,
    RanksDifferError,
    RendezvousError,
)
from intarsia.groups.ring.frames import HEADER_BYTES, Header, Kind, unpack
from intarsia.groups.ring.line import Line
from intarsia.groups.ring.meet import Neighbours, meet, neighbours
from intarsia.groups.ring.route import Route
from tests.groups.rings import HOST, around, free_ports


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
