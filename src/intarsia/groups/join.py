"""How a rank finds the others: a key-value store over TCP, then a process group."""

import os
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

import torch
import torch.distributed

from intarsia.groups.errors import RankMissingError, RendezvousError
from intarsia.groups.exchanging import RankGroup
from intarsia.groups.peer.meet import open_exchange
from intarsia.groups.ring.group import RingGroup
from intarsia.groups.ring.meet import Neighbours
from intarsia.groups.ring.store import RingStore, open_ring
from intarsia.groups.status import LISTEN_FD, SILENT_STATUS, STATUS_FILE, SharedStatus, Status, Tally
from intarsia.groups.torch_group import TorchGroup, seconds

dist: Any = torch.distributed  # its parts are only partly typed
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class Place:
    """One rank among `ranks`, and where they meet: rank 0 listens at `master`:`port`.

    `timeout` is how many seconds a rank waits for another, when they meet and at every exchange. With a
    `ring` every rank listens at `port` towards the one before it, and there is no common address.
    """

    rank: int
    ranks: int
    master: str
    port: int
    timeout: float
    ring: Neighbours | None = None

    @property
    def patience(self) -> timedelta:
        """The timeout as torch takes it."""
        return seconds(self.timeout)


def open_store(place: Place) -> Any:
    """The store the ranks meet at, opened by rank 0 and reached by the others; in a ring everybody's.

    Raises RendezvousError: the port is in use, or nobody answers there in time; in a ring also
    RankMissingError and RanksDifferError.
    """
    if place.ring is not None:
        return open_ring(
            place.rank, place.ranks, place.ring, place.port, own_status(place.rank), place.timeout
        )
    listen = os.environ.get(LISTEN_FD)
    # torchrun's agent holds the store itself, then every rank is a guest
    host = place.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    problem = ""
    try:
        return dist.TCPStore(
            place.master,
            place.port,
            world_size=place.ranks,
            is_master=host,
            timeout=place.patience,
            wait_for_workers=False,
            master_listen_fd=int(listen) if host and listen is not None else None,
        )
    except (RuntimeError, ValueError) as error:
        problem = str(error)
    in_use = "in use" in problem or "EADDRINUSE" in problem
    raise RendezvousError(
        f"{place.master}:{place.port}",
        found="a port in use" if in_use else f"no store ({problem.strip().splitlines()[0][:200]})",
        expected="a free port to listen at" if host else f"rank 0 to answer in {place.timeout:g} s",
        action="choose another --master-port on all ranks" if in_use else "start rank 0, and look at its log",
    )


def form(place: Place, store: Any, device: torch.device, status: Status | None = None) -> RankGroup:
    """The group of all ranks: NCCL for CUDA devices, gloo otherwise, over a ring the ranks' own lines.

    Raises RankMissingError.
    """
    if isinstance(store, RingStore):
        store.settle()
        return RingGroup(store, device, status or own_status(place.rank))
    problem = ""
    try:
        backend = _nccl(place, store, device) if device.type == "cuda" else _gloo(place, store)
    except RuntimeError as error:
        problem = str(error)
    if problem:
        raise RankMissingError(
            f"rank {place.rank} of {place.ranks}",
            found=f"no connection to every rank ({problem.strip().splitlines()[0][:200]})",
            expected=f"all ranks within {place.timeout:g} s",
            action="look at the other ranks' logs",
        )
    patience = exchange_timeout(place)
    peers = None
    if device.type == "cuda" and place.ranks > 1:
        peers = open_exchange(
            store, place.rank, place.ranks, device, timeout=patience.total_seconds(), wide=True
        )
    return TorchGroup(
        backend, device, timeout=patience, status=status or own_status(place.rank), store=store, peers=peers
    )


@cache
def own_status(rank: int) -> Tally:
    """What this rank says of itself, which whoever watches it reads too."""
    path = os.environ.get(STATUS_FILE)
    return Tally(SharedStatus(path, rank) if path else SILENT_STATUS)  # one a process: it counts


def exchange_timeout(place: Place) -> timedelta:
    """How long an exchange may take. Whoever watches the ranks is to be first, and name the one to blame."""
    return seconds(place.timeout * (2 if os.environ.get(STATUS_FILE) else 1))


def _gloo(place: Place, store: Any) -> Any:
    options = dist.ProcessGroupGloo._Options()
    options._timeout = exchange_timeout(place)
    if place.master in LOOPBACK:
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    elif name := os.environ.get("GLOO_SOCKET_IFNAME"):
        options._devices = [dist.ProcessGroupGloo.create_device(interface=name)]
    else:
        options._devices = [dist.ProcessGroupGloo.create_default_device()]
    return dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), place.rank, place.ranks, options)


def _nccl(place: Place, store: Any, device: torch.device) -> Any:
    torch.cuda.set_device(device)
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = exchange_timeout(place)
    return dist.ProcessGroupNCCL(dist.PrefixStore("nccl", store), place.rank, place.ranks, options)
