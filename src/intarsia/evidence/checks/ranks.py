"""The engine checks on several ranks: all of them run the same check, each on its own share of the model.

Where a check drives an engine step by step, every rank does so by itself; what a step follows from is
compared before each, as it is when serving. Where requests arrive at an engine's thread, rank 0 takes them
and the others follow.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from intarsia.core.progress import SILENT, Progress
from intarsia.engine.ranked import RankedEngine
from intarsia.evidence.checks.coverage import Cell, CheckReport
from intarsia.groups.exchanging import RankGroup
from intarsia.groups.group import Group
from intarsia.models.glm5_next.model import Glm5NextModel

Check = Callable[[Glm5NextModel, Progress], CheckReport]


class LockstepEngine(RankedEngine):
    """One of several ranks' engines that are all given the same: nobody has to be told."""

    def _tell(self, message: dict[str, Any]) -> None:
        self._number += 1


class PrefixedStore:
    """A store whose keys begin with something, so that engines of a check do not read each other's."""

    def __init__(self, store: Any, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    def set(self, key: str, value: str) -> None:
        """Keep a value."""
        self._store.set(self._prefix + key, value)

    def get(self, key: str) -> Any:
        """The value, once there is one."""
        return self._store.get(self._prefix + key)

    def wait(self, keys: list[str], patience: timedelta) -> None:
        """Return once all keys have values."""
        self._store.wait([self._prefix + key for key in keys], patience)

    def delete_key(self, key: str) -> Any:
        """Forget a value."""
        return self._store.delete_key(self._prefix + key)


def run_check(
    checks: Mapping[str, Check], name: str, model: Glm5NextModel, group: Group, progress: Progress = SILENT
) -> CheckReport:
    """Run one of the checks: the report of rank 0, with what any rank found among its failures.

    All ranks of the group must call this, and are given the same; rank 0 alone tells how far it is.
    """
    report = checks[name](model, progress if group.rank == 0 else SILENT)
    if not isinstance(group, RankGroup):
        return report
    group.store.set(f"checked/{name}/{group.rank}", json.dumps(asdict(report)))
    group.barrier("the check is done")
    told = [json.loads(group.store.get(f"checked/{name}/{rank}")) for rank in range(group.ranks)]
    group.barrier("all know what was found")
    failures = tuple(f"rank {rank}: {what}" for rank, one in enumerate(told) for what in one["failures"])
    cells = tuple(Cell(**cell) for cell in told[0]["cells"])
    return CheckReport(name, cells, failures, told[0]["compared"], told[0]["seconds"])
