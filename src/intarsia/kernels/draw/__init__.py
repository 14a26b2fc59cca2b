"""The parts of the keyed draw that touch a whole vocabulary, on a GPU in one pass over the logits.

Their specification is the torch form in `intarsia.engine.sampling`, whose integers they give to the last bit.
"""

import torch
from torch import Tensor

from intarsia.kernels.choice import TRITON, Case, choose, offer
from intarsia.kernels.device import on_device_of

__all__ = ["noisy_best", "takes", "total_mass"]

_TILE, _WARPS = 1024, 4


def _refuse(case: Case) -> str:
    return "" if case.dtype == torch.float32 else f"logits of {case.dtype}; float32 is needed"


offer("draw", _refuse)


def takes(logits: Tensor) -> bool:
    """Whether the kernels run for these logits."""
    return choose(Case("draw", (), logits.dtype, logits.device)) == TRITON


def noisy_best(
    logits: Tensor,
    peak: Tensor,
    scales: Tensor,
    positions: Tensor,
    seeds: tuple[Tensor, Tensor],
    *,
    first_id: int = 0,
) -> Tensor:
    """The column int64 [R] of each row of logits [R, V] that wins once noise is added to its distance.

    peak float32 [R], scales float64 [R], positions and seeds (low and high halves) int64 [R]; the noise of
    column c is that of token `first_id` + c. Equal values go to the lowest column. Rows of minus infinity
    alone, and rows with a NaN, give some column.
    """
    from intarsia.kernels.draw import triton_draw as kernels

    rows, count = logits.shape
    tiles = -(-count // _TILE)
    values = torch.empty(rows, tiles, dtype=torch.int64, device=logits.device)
    ids, out = torch.empty_like(values), torch.empty(rows, dtype=torch.int64, device=logits.device)
    with on_device_of(logits):
        kernels.noisy_tiles[(tiles, rows)](
            logits,
            logits.stride(0),
            peak,
            scales,
            positions,
            *seeds,
            values,
            ids,
            count,
            first_id,
            TILE=_TILE,
            num_warps=_WARPS,
            enable_fp_fusion=False,
        )
        kernels.best_of_tiles[(rows,)](
            values, ids, out, tiles, TILES=1 << (tiles - 1).bit_length(), num_warps=_WARPS
        )
    return out.clamp(max=count - 1)


def total_mass(logits: Tensor, peak: Tensor, scales: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """The sum int64 [R] of the masses of each row of logits [R, V], in units of 2**-40 of the peak's."""
    from intarsia.kernels.draw import triton_draw as kernels

    rows, count = logits.shape
    out = torch.zeros(rows, dtype=torch.int64, device=logits.device)
    with on_device_of(logits):
        kernels.mass_of_tiles[(-(-count // _TILE), rows)](
            logits,
            logits.stride(0),
            peak,
            scales,
            *tables,
            out,
            count,
            TILE=_TILE,
            num_warps=_WARPS,
            enable_fp_fusion=False,
        )
    return out
