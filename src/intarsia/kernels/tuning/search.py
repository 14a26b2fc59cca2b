"""The search for the fastest configuration of a site: bits first, then times, the default beside them all."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from intarsia.kernels.tuning.active import Found, trying
from intarsia.kernels.tuning.candidates import Configuration, Site, configurations

FINALISTS = 4
"""Candidates that are timed again and again beside the default."""
REPEATS = 7
OTHER_BITS = "other bits than the default's"

Call = Callable[[], Tensor | Sequence[Tensor]]


class Timer(Protocol):
    """Takes calls as they are configured now; what it gives answers with the microseconds of one of them,
    each time anew.
    """

    def __call__(self, calls: Sequence[Call]) -> Callable[[], float]: ...


@dataclass(frozen=True, slots=True)
class Trial:
    """A site and calls of it on random data, of the fewest and the most rows of its bucket. What they give is
    compared bit for bit.
    """

    site: Site
    calls: Sequence[Call]


@dataclass(frozen=True, slots=True)
class Searched:
    """What a search found; candidates that were refused, and why. `tried` counts those that were timed."""

    site: Site
    found: Found
    tried: int
    refused: Mapping[Configuration, str] = field(default_factory=dict)


def search(
    trial: Trial,
    timer: Timer,
    *,
    repeats: int = REPEATS,
    known: Mapping[Configuration, str] | None = None,
    finish: Callable[[], bool] = lambda: False,
) -> Searched:
    """Time every candidate that gives the default's bits once, then the fastest again and again in turn with
    the default.

    One replaces the default only if its median is less by more than either's spread, the range of its
    repeats. An error of the default is raised, one of a candidate refuses it, and so do those that are
    `known`, which are not tried. Once `finish` says so no further candidate is.
    """
    site = trial.site
    tunable = configurations(site.operation)
    default = tunable.default(site)
    refused = {one: reason for one, reason in (known or {}).items() if one != default}
    with trying(site, default):
        wanted = _results(trial.calls)
        times = {default: timer(trial.calls)}
    for one in tunable.candidates(site):
        if one == default or one in refused:
            continue
        if finish():
            break
        try:
            with trying(site, one):
                if not _equal(_results(trial.calls), wanted):
                    refused[one] = OTHER_BITS
                    continue
                times[one] = timer(trial.calls)
        except Exception as error:
            refused[one] = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
    best, of_default = _final(times, default, repeats)
    return Searched(site, _judged(default, best, of_default), len(times), refused)


def _final(
    times: Mapping[Configuration, Callable[[], float]], default: Configuration, repeats: int
) -> tuple[dict[Configuration, list[float]], list[float]]:
    """All times of the finalists and of the default; each round begins with another one."""
    first = {one: again() for one, again in times.items()}
    rivals = sorted((one for one in first if one != default), key=lambda one: first[one])[:FINALISTS]
    order = [default, *rivals]
    found: dict[Configuration, list[float]] = {one: [] for one in order}
    for turn in range(repeats):
        start = turn % len(order)
        for one in (*order[start:], *order[:start]):
            found[one].append(times[one]())
    return {one: found[one] for one in rivals}, found[default]


def _judged(
    default: Configuration, rivals: Mapping[Configuration, list[float]], of_default: list[float]
) -> Found:
    """The winner beside the default, which wins where no rival is faster beyond doubt."""
    us, spread = statistics.median(of_default), max(of_default) - min(of_default)
    best = Found(default, us, spread, us, spread)
    for one, taken in rivals.items():
        median, own = statistics.median(taken), max(taken) - min(taken)
        if us - median > max(spread, own) and median < best.us:
            best = Found(one, median, own, us, spread)
    return best


def _results(calls: Sequence[Call]) -> list[Tensor]:
    found: list[Tensor] = []
    for call in calls:
        result = call()
        found += [result] if isinstance(result, Tensor) else list(result)
    return found


def _equal(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
    """Bit for bit: a NaN equals itself, and 0 is not -0."""
    return len(ours) == len(theirs) and all(
        a.shape == b.shape and a.dtype == b.dtype and torch.equal(_bits(a), _bits(b))
        for a, b in zip(ours, theirs, strict=True)
    )


def _bits(tensor: Tensor) -> Tensor:
    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.contiguous().view(whole)
