"""How ranks of one host open each other's buffers, all of them or none."""

import json
import logging
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path

import torch

from intarsia.groups.agreement import Store
from intarsia.groups.peer import driver
from intarsia.kernels.choice import no_triton
from intarsia.kernels.exchange import MOST, TILE, Exchange, buffer_bytes

LOG = logging.getLogger(__name__)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class PeerMemory:
    """This rank's buffer and its view of the others'. It must outlive the exchanges over it."""

    def __init__(self, addresses: Sequence[int], closing: ExitStack) -> None:
        self.addresses = tuple(addresses)
        """All ranks' buffers, as this process sees them."""
        self._closing = closing

    def close(self) -> None:
        """Let the buffers go; every rank's last exchange must be over."""
        self._closing.close()


def open_exchange(
    store: Store,
    rank: int,
    ranks: int,
    device: torch.device,
    *,
    timeout: float,
    most: int = MOST,
    wide: bool = False,
    tile: int = TILE,
) -> Exchange | None:
    """An exchange between the GPUs, of up to `most` numbers by the small kernel and, if `wide`, of more.

    None, with a reason in the log, if there cannot be one. Every rank gets one, or none does.
    """
    memory, reason = open_memory(store, rank, ranks, device, buffer_bytes(ranks, most, wide, tile), timeout)
    if memory is None:
        LOG.info("ranks exchange by NCCL alone: %s", reason)
        return None
    return Exchange(
        memory.addresses, rank, device, most=most, wide=wide, timeout=timeout, tile=tile, keep=memory
    )


def open_memory(
    store: Store, rank: int, ranks: int, device: torch.device, nbytes: int, timeout: float
) -> tuple[PeerMemory | None, str]:
    """Every rank's buffer of `nbytes` zeros; or nothing, and the first rank's reason."""
    patience = timedelta(seconds=timeout)
    closing = ExitStack()

    def all_told(step: str, act: Callable[[], str]) -> tuple[list[str], str]:
        """What `act` gives on every rank, and why the first one failed."""
        try:
            told = {"value": act()}
        except (driver.DriverError, OSError, ValueError) as error:
            told = {"reason": f"rank {rank}: {error}"}
        store.set(f"{step}/{rank}", json.dumps(told))
        keys = [f"{step}/{other}" for other in range(ranks)]
        store.wait(keys, patience)
        answers = [json.loads(store.get(key)) for key in keys]
        reasons = [answer["reason"] for answer in answers if "reason" in answer]
        return [answer.get("value", "") for answer in answers], reasons[0] if reasons else ""

    def make() -> str:
        address = driver.allocate(nbytes)
        closing.callback(driver.free, address)
        addresses[rank] = address
        return driver.handle_of(address)

    def open_others() -> str:
        for other, handle in enumerate(handles):
            if other != rank:
                addresses[other] = driver.open_handle(handle)
                closing.callback(driver.close_handle, addresses[other])
        return ""

    addresses = [0] * ranks
    with torch.cuda.device(device):
        torch.zeros(1, device=device)  # makes the device's context current
        places, reason = all_told("peer/place", lambda: _place(device))
        reason = reason or _apart(places, device)
        # one rank's reason is everybody's: places are judged by each with its own device
        _, reason = all_told("peer/near", lambda: _refuse(reason))
        handles: list[str] = []
        if not reason:
            handles, reason = all_told("peer/handle", make)
        if not reason:
            _, reason = all_told("peer/open", open_others)
    if reason:
        with suppress(driver.DriverError):
            closing.close()
        return None, reason
    return PeerMemory(addresses, closing), ""


def _refuse(reason: str) -> str:
    if reason:
        raise ValueError(reason)
    return ""


def _place(device: torch.device) -> str:
    reason = no_triton(device)
    if reason:
        raise ValueError(reason)
    boot = _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else socket.gethostname()
    return json.dumps([boot, str(torch.cuda.get_device_properties(device).uuid)])


def _apart(places: Sequence[str], device: torch.device) -> str:
    """Why the ranks' devices cannot reach each other, or the empty string."""
    found = [json.loads(place) for place in places]
    if len({host for host, _ in found}) > 1:
        return "ranks on several hosts"
    devices = [uuid for _, uuid in found]
    if len(set(devices)) < len(devices):
        return "two ranks on one GPU"
    local = {
        str(torch.cuda.get_device_properties(index).uuid): index for index in range(torch.cuda.device_count())
    }
    own = device.index if device.index is not None else torch.cuda.current_device()
    for rank, uuid in enumerate(devices):
        if uuid in local and local[uuid] != own and not torch.cuda.can_device_access_peer(own, local[uuid]):
            return f"no peer access to the GPU of rank {rank}"
    return ""
