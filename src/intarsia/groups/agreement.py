"""Before anything is loaded the ranks compare what they were started with, and refuse together."""

import hashlib
import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed

from intarsia.core.errors import Violation
from intarsia.groups.errors import LineError, RankMissingError, RanksDifferError, lost

dist: Any = torch.distributed  # its parts are only partly typed
LONGEST_WAIT = timedelta(hours=12)
ENOUGH = timedelta(seconds=2)
"""How long ranks that are about to refuse wait for the others' facts."""


class Store(Protocol):
    """The few calls of torch's key-value stores that are used here."""

    def set(self, key: str, value: str) -> None: ...

    def get(self, key: str) -> bytes: ...

    def wait(self, keys: list[str], timeout: timedelta) -> None: ...

    def delete_key(self, key: str) -> bool: ...


def compare(
    store: Store, topic: str, rank: int, ranks: int, facts: Mapping[str, object], timeout: timedelta
) -> None:
    """Hold this rank's facts against everyone's.

    Facts are compared as JSON. Raises RankMissingError naming the ranks that did not say theirs in time,
    RankLostError for one that is known to be gone, and RanksDifferError with every fact that differs and the
    values of all ranks.
    """
    problem: LineError | None = None
    try:
        found = _compared(store, topic, rank, ranks, facts, timeout)
    except LineError as error:
        problem = error
    if problem is not None:
        raise lost(problem, rank, ranks)
    if found:
        raise RanksDifferError(topic, found)


def _compared(
    store: Store, topic: str, rank: int, ranks: int, facts: Mapping[str, object], timeout: timedelta
) -> list[Violation]:
    own = {key: str(value) for key, value in facts.items()}
    store.set(f"{topic}/{rank}", json.dumps(own))
    told: dict[int, dict[str, str]] = {}
    for other in range(ranks):
        if _comes(store, f"{topic}/{other}", timeout):
            told[other] = json.loads(store.get(f"{topic}/{other}"))
            if told[other] != own:
                # there is something to tell already: ranks of another count may never come
                timeout = min(timeout, ENOUGH)
    found = differences(told)
    missing = [other for other in range(ranks) if other not in told]
    if missing and not found:
        raise RankMissingError(
            "rank " + " and ".join(map(str, missing)),
            found=f"no word of its {topic} in {timeout.total_seconds():g} s",
            expected=f"{ranks} ranks",
            action="start the ranks that are missing, with the same --tp on each",
        )
    # Nobody leaves before all have read: rank 0 holds the store.
    store.set(f"{topic}/read/{rank}", "1")
    for other in told:
        _comes(store, f"{topic}/read/{other}", timeout)
    return found


def differences(told: Mapping[int, Mapping[str, str]]) -> list[Violation]:
    """Every fact on which the ranks do not agree; `told` holds those of each rank."""
    keys = {key: None for facts in told.values() for key in facts}
    found = []
    for key in keys:
        values = {rank: facts.get(key, "nothing") for rank, facts in told.items()}
        if len(set(values.values())) > 1:
            each = ", ".join(f"{value} on rank {rank}" for rank, value in values.items())
            found.append(Violation("ranks-differ", key, each, "the same on all ranks"))
    return found


def digest(document: object) -> str:
    """sha256 of a JSON document, short enough to read."""
    text = json.dumps(document, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def await_entry(store: Store, key: str) -> bytes:
    """An entry, slept for however long it takes. Raises RuntimeError when a rank or the store is gone."""
    while True:
        try:
            store.wait([key], LONGEST_WAIT)
            return store.get(key)
        except (dist.DistStoreError, TimeoutError):  # it was not there in time: wait on
            continue


def _comes(store: Store, key: str, timeout: timedelta) -> bool:
    try:
        store.wait([key], timeout)
    except LineError:
        raise
    except Exception:  # torch has several types for a time that ran out, and for a store that is gone
        return False
    return True
