"""The launch of products of up to 64 rows, and the counts by which the ranges of a tile find their last."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from intarsia.kernels.linear import plan
from intarsia.kernels.linear.launch import format_of
from intarsia.kernels.linear.operands import (
    CODES,
    ahead_of,
    aligned_rows,
    first_tiles,
    scales_of,
    sizes_of,
    words_of,
)
from intarsia.kernels.prefetch import AT_ONCE
from intarsia.kernels.weights import Weight

OVERLAP = True
"""Whether these products begin, with their weights, while the kernel before still runs."""
_COUNTS = 1 << 16
"""Of a device. Launches take them in turn, so that hundreds may run at once; a launch leaves zeros behind."""


@dataclass(slots=True)
class _Counts:
    zeros: Tensor
    next: int = 0


_OF_DEVICE: dict[torch.device, _Counts] = {}


def ready(device: torch.device) -> bool:
    """Whether ranges can be programs of their own here: what counts them is made outside of any capture."""
    if device not in _OF_DEVICE:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return False
        _OF_DEVICE[device] = _Counts(torch.zeros(_COUNTS, dtype=torch.int32, device=device))
    return True


def _counts(device: torch.device, many: int) -> Tensor:
    """Zeros that no launch nearby uses; they begin on a multiple of 16 bytes, as kernels are compiled for."""
    mine = _OF_DEVICE[device]
    many = -(-many // 4) * 4
    first = mine.next if mine.next + many <= _COUNTS else 0
    mine.next = first + many
    return mine.zeros[first : mine.next]


def launch_some(
    xs: Sequence[Tensor],
    weights: Sequence[Weight],
    outs: Sequence[Tensor],
    used: Tensor | None,
    limit: float | None,
    ranges: int,
    shape: plan.Some,
    ahead: Weight | None,
) -> None:
    """As `gluon.launch`, of as many rows as `shape.rows` at most."""
    from intarsia.kernels.linear import gluon_some as kernels

    rows, k = xs[0].shape
    xs = aligned_rows(xs)
    sizes = sizes_of(weights)
    first = first_tiles(sizes, shape.tile)
    parts = counts = None
    if shape.apart:
        room = first[-1] * ranges * shape.tile * shape.rows
        parts = torch.empty(room, dtype=torch.float32, device=xs[0].device)
        counts = _counts(xs[0].device, first[-1])
    asked = ahead_of(ahead, first[-1] * (ranges if shape.apart else 1), AT_ONCE)
    kernels.some_rows[(first[-1], ranges if shape.apart else 1)](
        tuple(xs),
        tuple(words_of(weight) for weight in weights),
        tuple(scales_of(weight) for weight in weights),
        tuple(outs),
        tuple(out.stride(0) for out in outs),
        parts,
        counts,
        used,
        rows,
        xs[0].stride(0),
        asked.memory,
        asked.part,
        LIMIT=limit,
        NS=sizes,
        FIRST=first,
        K=k,
        FORMAT=CODES[format_of(weights[0])],
        RANGES=ranges,
        APART=shape.apart,
        WARPS=shape.warps,
        BN=shape.tile,
        NT=shape.rows,
        STAGES=shape.stages,
        LEAD=shape.lead,
        HELD=shape.held,
        TURNED=shape.turned,
        GATED=limit is not None,
        EVEN=not any(size % shape.tile for size in sizes),
        EACH=asked.each,
        num_warps=shape.warps,
        launch_pdl=OVERLAP,
    )
