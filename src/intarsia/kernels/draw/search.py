"""Launches of the draw of whole rows, cuts among them: nothing is sorted, and the host looks at no value."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from intarsia.kernels.device import interpreting, on_device_of

_DIGIT, _VALUES = 5, 32
_PEAK_TILE, _PEAK_WARPS = 2048, 4
_SEARCH_TILE, _SEARCH_WARPS = 512, 1
_NOISE_TILE, _NOISE_WARPS = 1024, 4
_LOGIT_BITS = 32


@dataclass(frozen=True, slots=True)
class Cuts:
    """How rows draw: scales float64, top_k int64 (0: no limit), top_p float64 (1: none), farthest int64,
    positions and halves of the seed int64, [R] each.
    """

    scales: Tensor
    top_k: Tensor
    top_p: Tensor
    farthest: Tensor
    positions: Tensor
    seeds: tuple[Tensor, Tensor]


def likeliest_token(logits: Tensor) -> Tensor:
    """The likeliest token of each row of float32 logits [R, V], the lowest of equal ones, int64 [R]; -1 where
    a row has a NaN or no finite peak."""
    return _likeliest(logits, None)[1]


def likeliest_of(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The same with peaks float32 [R], a NaN taken as infinity."""
    return _likeliest(logits, None)


def drawn_token(
    logits: Tensor, cuts: Cuts, tables: tuple[Tensor, Tensor], *, searching: bool = True
) -> Tensor:
    """The token of each row of float32 logits [R, V] that wins among those which the cuts allow, int64 [R];
    -1 where nothing may be drawn.

    Top k, then a nucleus of those, then the distance. `tables` as `fixedpoint.tables`. Without `searching` no
    row may have a top k or a nucleus.
    """
    from intarsia.kernels.draw import triton_search as kernels

    rows, count = logits.shape
    steps = -(-(_LOGIT_BITS + _bits(count)) // _DIGIT)
    sums_each = 1 << (steps * _VALUES - 1).bit_length()
    lowest = torch.empty(rows, dtype=torch.int64, device=logits.device)
    state = torch.empty(rows, 4, dtype=torch.int64, device=logits.device)
    sums = torch.empty(rows, sums_each, dtype=torch.int64, device=logits.device)
    peaks, tokens = _likeliest(logits, (lowest, sums))
    fixed: dict[str, Any] = {"SUMS": sums_each, **_overlap()}
    grid = (-(-count // _SEARCH_TILE), rows)
    with on_device_of(logits):
        for mass, limits in ((False, cuts.top_k), (True, cuts.top_p)) if searching else ():
            for step in range(steps):
                kernels.search_tiles[grid](
                    logits,
                    logits.stride(0),
                    peaks,
                    cuts.scales,
                    limits,
                    lowest,
                    *tables,
                    state,
                    sums,
                    count,
                    step,
                    (steps - 1 - step) * _DIGIT,
                    TILE=_SEARCH_TILE,
                    IDS=_bits(count),
                    MASS=mass,
                    num_warps=_SEARCH_WARPS,
                    enable_fp_fusion=False,
                    **fixed,
                )
            kernels.end_search[(rows,)](
                limits, state, sums, lowest, steps, MASS=mass, num_warps=1, enable_fp_fusion=False, **fixed
            )
        return _noisy(logits, cuts, peaks, tokens, lowest)


def _noisy(logits: Tensor, cuts: Cuts, peaks: Tensor, tokens: Tensor, lowest: Tensor) -> Tensor:
    from intarsia.kernels.draw import triton_search as kernels

    rows, count = logits.shape
    tiles = -(-count // _NOISE_TILE)
    values = torch.empty(rows, tiles, dtype=torch.int64, device=logits.device)
    ids, out = torch.empty_like(values), torch.empty_like(tokens)
    kernels.noisy_allowed[(tiles, rows)](
        logits,
        logits.stride(0),
        peaks,
        cuts.scales,
        cuts.farthest,
        lowest,
        cuts.positions,
        *cuts.seeds,
        values,
        ids,
        count,
        TILE=_NOISE_TILE,
        IDS=_bits(count),
        num_warps=_NOISE_WARPS,
        enable_fp_fusion=False,
        **_overlap(),
    )
    kernels.drawn_of_rows[(rows,)](
        values, ids, tokens, out, tiles, TILES=1 << (tiles - 1).bit_length(), num_warps=4, **_overlap()
    )
    return out


def _likeliest(logits: Tensor, cleared: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    """Peaks float32 and their tokens int64 [R]; sets to zero what a search begins with."""
    from intarsia.kernels.draw import triton_search as kernels

    rows, count = logits.shape
    tiles = -(-count // _PEAK_TILE)
    where = logits.device
    keys = torch.empty(rows, tiles, dtype=torch.int64, device=where)
    peaks = torch.empty(rows, dtype=torch.float32, device=where)
    tokens = torch.empty(rows, dtype=torch.int64, device=where)
    lowest, sums = cleared or (None, None)
    with on_device_of(logits):
        kernels.likeliest_of_tiles[(tiles, rows)](
            logits,
            logits.stride(0),
            keys,
            count,
            TILE=_PEAK_TILE,
            IDS=_bits(count),
            num_warps=_PEAK_WARPS,
            **_overlap(),
        )
        kernels.likeliest_of_rows[(rows,)](
            keys,
            peaks,
            tokens,
            lowest,
            sums,
            tiles,
            TILES=1 << (tiles - 1).bit_length(),
            IDS=_bits(count),
            SUMS=0 if sums is None else sums.shape[1],
            num_warps=4,
            **_overlap(),
        )
    return peaks, tokens


def _bits(count: int) -> int:
    """Bits of a column; at least one."""
    return max(1, (count - 1).bit_length())


def _overlap() -> dict[str, Any]:
    return {"OVERLAP": False} if interpreting() else {"OVERLAP": True, "launch_pdl": True}
