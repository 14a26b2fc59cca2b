"""Scales of whole matrices, of which every rank reads its own share: largest magnitudes found together.

A rank reads its part of some matrices and keeps it, finds the largest magnitude of each part, and the ranks
compare these in one exchange of a number a group of matrices. Then each encodes its part. The largest of the
parts is that of the whole, so the bytes are those of a cut of the encoded whole.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from intarsia.loading.window import Window
from intarsia.planning.working import HOLD_BYTES
from intarsia.selection.resolve import Target

Largest = Callable[[torch.Tensor], torch.Tensor]
"""The largest over all ranks of each of some float32 numbers, NaN if one is: every rank calls it alike."""
Parts = Sequence[tuple[Target, Window | None]]


class Batch(NamedTuple):
    """Groups of matrices that are encoded after one exchange (`shared`), their parts `held` in memory from
    then on; or one group that a rank encodes by itself."""

    keys: list[str]
    shared: bool = False
    held: bool = False


def batches(
    units: Mapping[str, Parts],
    shared: Callable[[str], bool],
    nbytes: Callable[[str], int],
    ranks: int,
    bounded: bool,
) -> Iterator[Batch]:
    """Groups in their order, those that are exchanged put together; the same on all ranks.

    `nbytes` are those of a group's whole matrices. A rank's parts of a batch take about half of what may be
    held; with a budget (`bounded`) every group is one by itself.
    """
    most = HOLD_BYTES * ranks // 2
    waiting: list[str] = []
    for key in units:
        together = shared(key)
        size = nbytes(key) if together else 0
        if waiting and (not together or bounded or size + sum(map(nbytes, waiting)) > most):
            yield Batch(waiting, True, True)
            waiting = []
        if not together:
            yield Batch([key])
        elif size > HOLD_BYTES * ranks:
            yield Batch([key], True, False)
        else:
            waiting.append(key)
    if waiting:
        yield Batch(waiting, True, True)


def magnitude(part: torch.Tensor) -> torch.Tensor:
    """The largest magnitude as float32 []; NaN if there is one."""
    low, high = part.aminmax()
    return torch.maximum(low.abs(), high.abs()).float()
