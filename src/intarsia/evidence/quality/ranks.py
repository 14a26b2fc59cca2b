"""A comparison whose candidate, or both forms, run on several ranks.

All ranks read the text and cut the same windows. Rank 0 tells, and runs a base that is on one rank. The
others wait for it at the store, where time does not count, run their shares, and help with the logits.
"""

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch

from intarsia.core.progress import Progress
from intarsia.engine.joining import WatchedProgress, join, plan_hash, rank_device
from intarsia.evidence.forms import Form
from intarsia.evidence.machine import clocks, machine
from intarsia.evidence.quality.settings import QualitySettings
from intarsia.evidence.quality.windows import Window, windows_hash
from intarsia.groups.agreement import compare
from intarsia.groups.exchanging import RankGroup
from intarsia.groups.group import SINGLE, Group
from intarsia.groups.join import own_status
from intarsia.groups.torch_group import seconds
from intarsia.loading.weights import prepared

A_LONG_WAIT = timedelta(days=7)


class Ranks:
    """This process among those of a run; alone it is the only one."""

    def __init__(self, group: Group, settings: QualitySettings) -> None:
        self.group = group
        self.settings = settings
        self._store: Any = group.store if isinstance(group, RankGroup) else None

    @property
    def leads(self) -> bool:
        """True for the rank that compares and tells."""
        return self.group.rank == 0

    @property
    def base_group(self) -> Group:
        """The ranks that the base runs on."""
        return self.group if self.settings.base_tp > 1 else SINGLE

    @property
    def runs_base(self) -> bool:
        """True if this process has a part in the base."""
        return self.leads or self.base_group.ranks > 1

    @property
    def device(self) -> torch.device:
        """Where this rank computes."""
        return rank_device(self.settings.rank_settings(), torch.device(self.settings.device))

    def watched(self, progress: Progress) -> Progress:
        """Progress that whoever watches the ranks sees too."""
        return WatchedProgress(progress, own_status(self.group.rank)) if self.group.ranks > 1 else progress

    def agree(self, windows: Sequence[Window]) -> None:
        """Raise RanksDifferError unless all ranks are about to read the same, as often."""
        if self._store is None:
            return
        facts = {
            "windows": windows_hash(windows),
            "repeat_windows": self.settings.repeat_windows,
            "base_tp": self.settings.base_tp,
        }
        patience = seconds(self.settings.rank_timeout)
        compare(self._store, "quality", self.group.rank, self.group.ranks, facts, patience)

    def reached(self, place: str) -> None:
        """Rank 0 says that it is there; the others wait until it is."""
        if self._store is None:
            return
        if self.leads:
            self._store.set(f"quality/{place}", "1")
        else:
            own_status(self.group.rank).tell(f"waits for rank 0: {place}")
            self._store.wait([f"quality/{place}"], A_LONG_WAIT)

    def end(self, code: int) -> int:
        """Rank 0's exit code, for all. No rank leaves before rank 0 is done, which holds the store."""
        if self._store is None:
            return code
        if self.leads:
            self._store.set("quality/code", str(code))
        self.reached("the end")
        code = int(self._store.get("quality/code"))
        self.group.barrier("the end")
        return code

    def described(self) -> list[dict[str, Any]]:
        """Every rank's place, machine and clocks, on all ranks."""
        own = {
            "rank": self.group.rank,
            "threads": torch.get_num_threads(),
            "device": str(self.device),
            "dtype": self.settings.dtype,
            "machine": machine(self.device),
            "clocks": clocks(self.device),
        }
        if self._store is None:
            return [own]
        self._store.set(f"quality/rank/{self.group.rank}", json.dumps(own))
        self.group.barrier("all have described themselves")
        return [json.loads(self._store.get(f"quality/rank/{rank}")) for rank in range(self.group.ranks)]


def meet(base: Form, candidate: Form, settings: QualitySettings) -> Ranks:
    """Find the other ranks, if there are to be any.

    Raises what `join` raises: ranks that do not come or were started otherwise, weights that cannot be cut.
    """
    wanted = settings.rank_settings()
    device = rank_device(wanted, torch.device(settings.device))
    group = join(wanted, prepared(candidate.checkpoint, candidate.manifest), device)
    if settings.base_tp > 1 and isinstance(group, RankGroup):
        plan = {"base": plan_hash(prepared(base.checkpoint, base.manifest), group.ranks)}
        compare(group.store, "base", group.rank, group.ranks, plan, seconds(settings.rank_timeout))
    return Ranks(group, settings)
