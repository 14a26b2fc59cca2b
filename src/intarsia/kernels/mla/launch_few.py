"""Launches of latent attention for few written rows, over more programs than there are ranges."""

import torch
from torch import Tensor

from intarsia.kernels.choice import GLUON
from intarsia.kernels.device import on_device_of, power_of_two
from intarsia.kernels.mla.case import LOG2_E, ROW_HEADS, TILE, Attention, Ranges
from intarsia.kernels.rows import Rows

FEW_ROWS = 4  # from more on a program a range is faster
_APART_ROWS = 2  # up to so many, whoever expands values takes the ranges as they are
# Tokens of a program of scores; and up to so many rows, columns of a program of sums.
_SCORED, _COLUMNS = 32, ((2, 64), (None, 128))


def apart(name: str, q: Tensor, rows: Rows) -> bool:
    """Whether kernels of that name may leave ranges for whoever expands values: rows are few, and all of them
    in the recurrent form.
    """
    recurrent = rows.recurrent_segments == rows.starts.shape[0] - 1
    return name == GLUON and q.shape[0] <= _APART_ROWS and recurrent


def attend_apart(
    q: Tensor, cache: Tensor, selected: Tensor, rows: Rows, scale: float, *, early: bool = True
) -> Ranges:
    """`launch.attend` without its last launch, where `apart` allows it."""
    q, selected = q.contiguous(), selected.contiguous()
    case = Attention(GLUON, q, cache, None, selected, rows, scale * LOG2_E, early)
    parts, stats = case.room(q.shape[0])
    with on_device_of(q):
        attend_few(case, (parts, stats))
    return Ranges(parts, stats, rows)


def attend_few(case: Attention, partial: tuple[Tensor, Tensor]) -> None:
    """Ranges of all rows into `partial`, parts and statistics, with the bits of a program a range."""
    from intarsia.kernels.mla import gluon_few as kernels

    splits, each = case.ranges
    rows, heads, latent = case.q.shape
    blocks = -(-heads // ROW_HEADS)
    slots = case.tiles * TILE
    columns = next(columns for most, columns in _COLUMNS if most is None or rows <= most)
    scores = torch.empty(rows, blocks, ROW_HEADS, slots, dtype=torch.float32, device=case.q.device)
    q, cache, _, selected, *where = case.tensors
    recurrent = case.rows.recurrent_segments
    factor, width = case.numbers
    constants = {"H": heads, "L": latent, "PAGE": case.cache.shape[1], "TILES": case.tiles, "num_warps": 4}
    kernels.score_latents[(slots // _SCORED, blocks, rows)](
        q,
        cache,
        selected,
        *where,
        scores,
        factor,
        width,
        recurrent,
        case.slots,
        PB=_SCORED,
        EARLY=case.early,
        **constants,
        **case.overlapped,
    )
    kernels.sum_ranges[(splits * latent // columns, blocks, rows)](
        scores,
        cache,
        selected,
        *where,
        *partial,
        width,
        recurrent,
        case.slots,
        EACH=each,
        EACH_SIZE=power_of_two(each),
        SPLITS=splits,
        C=columns,
        **constants,
        **case.overlapped,
    )
