"""A rank finds the others, and makes sure that all are about to do the same."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from importlib.metadata import version

import torch

from intarsia.checkpoint import Checkpoint
from intarsia.core.config import EngineSettings
from intarsia.core.errors import UsageError
from intarsia.core.progress import Phase, Progress
from intarsia.engine.settings import StreamSettings
from intarsia.groups.agreement import compare, digest
from intarsia.groups.group import SINGLE, Group
from intarsia.groups.join import Place, form, open_store, own_status
from intarsia.groups.lifeline import end_with_launcher
from intarsia.groups.ring.meet import neighbours
from intarsia.groups.status import SharedStatus, Status
from intarsia.loading.layout import Arrangement
from intarsia.loading.shares import share_of

# What may differ from rank to rank.
_OWN = frozenset(["device", "threads", "rank", "master", "master_port", "ring"])


def place_of(settings: EngineSettings) -> Place | None:
    """This process's place among the ranks, as told by the settings or by torchrun; None when it has none."""
    rank, master, port = settings.rank, settings.master, settings.master_port
    if rank is None and "TORCHELASTIC_RUN_ID" in os.environ:
        rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        if world != settings.tp:
            raise UsageError("tp", found=f"{settings.tp} under torchrun's {world} ranks", expected=f"{world}")
        master, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if rank is None:
        return None
    ring = neighbours(settings.ring, port) if settings.ring is not None else None
    return Place(rank, settings.tp, master, port, settings.rank_timeout, ring)


def rank_device(settings: EngineSettings, device: torch.device) -> torch.device:
    """The device of this rank: of CUDA devices that were not numbered, one a rank of this host."""
    place = place_of(settings)
    if settings.tp == 1 or place is None or str(device) != "cuda":
        return device
    local = int(os.environ.get("LOCAL_RANK", place.rank % max(1, torch.cuda.device_count())))
    return torch.device("cuda", local)


def join(settings: EngineSettings, plan: Arrangement, device: torch.device) -> Group:
    """The group this process belongs to; itself alone for one rank.

    Settings, versions, checkpoint and plan are compared before anything is loaded. Raises RendezvousError,
    RankMissingError, RanksDifferError, and LoadError for a checkpoint that cannot be cut so.
    """
    if settings.tp == 1:
        return SINGLE
    place = place_of(settings) or Place(
        0, settings.tp, settings.master, settings.master_port, settings.rank_timeout
    )
    end_with_launcher()
    status = own_status(place.rank)
    if isinstance(status.beyond, SharedStatus):
        status.beyond.beat()
    status.tell("meets the other ranks")
    store = open_store(place)
    compare(
        store, "settings", place.rank, place.ranks, _facts(settings, device, plan.checkpoint), place.patience
    )
    # every rank computes all shares, and refuses together with the others
    compare(store, "plan", place.rank, place.ranks, {"plan": plan_hash(plan, place.ranks)}, place.patience)
    group = form(place, store, device, status)
    group.barrier("before loading")
    return group


def identity(checkpoint: Checkpoint) -> str:
    """A hash of what a checkpoint's headers and configuration say; files are not read for it."""
    tensors = [[t.name, t.dtype, list(t.shape), t.shard, t.begin, t.end] for t in checkpoint.tensors.values()]
    shards = [[shard.name, shard.size] for shard in checkpoint.shards]
    return digest({"config": checkpoint.config, "tensors": sorted(tensors), "shards": sorted(shards)})


def plan_hash(plan: Arrangement, ranks: int) -> str:
    """A hash of what every rank will hold, and of which bytes it reads for it."""
    held = []
    for rank in range(ranks):
        for weight in share_of(plan, rank, ranks).weights:
            slots = {suffix: (str(slot.dtype), slot.shape) for suffix, slot in weight.slots.items()}
            regions = {suffix: region.starts for suffix, region in (weight.regions or {}).items()}
            held.append([weight.module.name, weight.format, slots, regions, weight.origin, weight.row_parts])
    return digest(held)


class _WatchedPhase:
    def __init__(self, phase: Phase, status: Status) -> None:
        self._phase = phase
        self._status = status

    def advance(self, count: int) -> None:
        """Pass it on; progress is a sign of life."""
        self._status.alive()
        self._phase.advance(count)


class WatchedProgress:
    """Progress that also tells whoever watches the ranks."""

    def __init__(self, progress: Progress, status: Status) -> None:
        self._progress = progress
        self._status = status

    @contextmanager
    def phase(self, name: str, total: int, unit: str = "bytes") -> Iterator[Phase]:
        """A phase, and a word about it."""
        self._status.tell(name)
        with self._progress.phase(name, total, unit) as phase:
            yield _WatchedPhase(phase, self._status)


def _facts(settings: EngineSettings, device: torch.device, checkpoint: Checkpoint) -> dict[str, object]:
    kind = StreamSettings if isinstance(settings, StreamSettings) else EngineSettings
    return {
        "intarsia": version("intarsia"),
        "torch": torch.__version__,
        "device": device.type,
        **{item.name: getattr(settings, item.name) for item in fields(kind) if item.name not in _OWN},
        "checkpoint": identity(checkpoint),
    }
