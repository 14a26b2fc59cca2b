"""Ranks in a ring, as threads of one process."""

import socket
import threading

import torch

from intarsia.groups.ring.group import RingGroup
from intarsia.groups.ring.meet import Neighbours
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
