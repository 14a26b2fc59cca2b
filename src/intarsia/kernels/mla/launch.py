"""Launches of latent attention's Triton kernels."""

from dataclasses import dataclass

import torch
from torch import Tensor

from intarsia.kernels.choice import GLUON, TRITON, Case, offer
from intarsia.kernels.device import on_device_of, wide
from intarsia.kernels.norm.launch import overlapped, power_of_two
from intarsia.kernels.rows import Rows

LOG2_E = 1.4426950408889634
# Slots of a tile, and tiles of a range: parts of the order of additions.
_TILE, _WIDE_TILE, _RANGE_TILES = 64, 16, 4
# Up to so many rows, heads and warps of a program that takes a range. No part of the order of additions.
_RANGE_HEADS = ((4, 16, 4), (None, 32, 4))
_ROW_HEADS, _WIDE_HEADS = 64, 16
_PROGRAMS = 132  # that an H200 runs at once if they fill its shared memory; more ranges than that share one


def refuse_rows(case: Case) -> str:
    """Why a kernel cannot run rows of a type, or widths, or the empty string."""
    if case.dtype not in (torch.bfloat16, torch.float32):
        return f"rows of {str(case.dtype).removeprefix('torch.')}; bfloat16 or float32 is needed"
    if any(width < 16 or width & (width - 1) for width in case.shape):
        return f"widths {', '.join(map(str, case.shape))}; powers of two from 16 on are needed"
    return ""


def refuse_gluon(case: Case) -> str:
    """Why the kernel for Hopper cannot attend, or the empty string; shape: the width of a latent."""
    if case.dtype != torch.bfloat16 or case.formats[0] != "BF16":
        kind = str(case.dtype).removeprefix("torch.")
        return f"rows of {kind}, latents in {case.formats[0]}; bfloat16 is needed"
    return "" if case.shape[0] == 512 else f"latents of {case.shape[0]} columns; 512 are needed"


offer("attend", refuse_rows)
offer("attend", refuse_gluon, GLUON)


@dataclass(frozen=True, slots=True)
class _Attention:
    """Absorbed queries [R, H, L], what they attend to, and whose kernels do it."""

    name: str
    q: Tensor
    cache: Tensor
    scales: Tensor | None
    selected: Tensor
    rows: Rows
    factor: float

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        rows = self.rows
        where = (self.cache, self.scales, self.selected, rows.page_table, rows.streams, rows.starts)
        return (self.q, *where)

    @property
    def numbers(self) -> tuple[float, int]:
        return self.factor, self.rows.page_table.shape[1]

    @property
    def slots(self) -> int:
        return self.selected.shape[1]

    @property
    def tiles(self) -> int:
        return -(-self.slots // (_WIDE_TILE if wide(self.q.dtype) else _TILE))

    def heads_each(self, most: int) -> int:
        return _WIDE_HEADS if wide(self.q.dtype) else min(most, max(16, power_of_two(self.q.shape[1])))

    @property
    def constants(self) -> dict[str, int | bool]:
        full = wide(self.q.dtype)
        _, heads, latent = self.q.shape
        shape = {"H": heads, "L": latent, "PAGE": self.cache.shape[1], "TILES": self.tiles}
        return {**shape, "TB": _WIDE_TILE if full else _TILE, "WIDE": full, "STAGES": 2}


def attend(
    q: Tensor,
    cache: Tensor,
    selected: Tensor,
    rows: Rows,
    scale: float,
    latent_scales: Tensor | None = None,
    segment_rows: int | None = None,
    name: str = TRITON,
) -> Tensor:
    """As `mla.attend`, by the kernels of that name: two launches for rows in the recurrent form, one for
    those in the prompt form.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    segments, recurrent = rows.starts.shape[0] - 1, rows.recurrent_segments
    factor = scale * LOG2_E
    case = _Attention(name, q.contiguous(), cache, latent_scales, selected.contiguous(), rows, factor)
    count = q.shape[0]
    with on_device_of(q):
        if recurrent:
            most = count if segment_rows is None else min(count, recurrent * segment_rows)
            _attend_ranges(case, out, most, alone=recurrent == segments)
        if recurrent < segments:
            _attend_rows(case, out)
    return out


def _attend_ranges(case: _Attention, out: Tensor, most: int, *, alone: bool) -> None:
    """At most the first `most` rows are in the recurrent form, and all rows that are real if `alone`."""
    from intarsia.kernels.mla import triton_attend as kernels

    rows, heads, latent = out.shape
    end = case.rows.recurrent_segments
    splits = max(1, (case.tiles - 1) // _RANGE_TILES)
    each = max(1, -(-(case.tiles - 1) // splits))
    parts = torch.empty(most, heads, splits, latent, dtype=torch.float32, device=out.device)
    stats = torch.empty(most, heads, splits, 2, dtype=torch.float32, device=out.device)
    if case.name == GLUON:
        _attend_tiles(case, out, (parts, stats), 0, end, (splits, each, most))
    else:
        block, warps = next(rest for limit, *rest in _RANGE_HEADS if limit is None or most <= limit)
        block = case.heads_each(block)
        kernels.attend_ranges[(splits, -(-heads // block), most)](
            *case.tensors,
            parts,
            stats,
            *case.numbers,
            end,
            case.slots,
            HB=block,
            EACH=each,
            EACH_SIZE=power_of_two(each),
            SPLITS=splits,
            # Codes are decoded in registers, and four warps have too few.
            num_warps=warps if case.scales is None else 8,
            **case.constants,
            **overlapped(rows),
        )
    kernels.add_ranges[(heads, rows if alone else most)](
        parts,
        stats,
        case.rows.starts,
        out,
        end,
        H=heads,
        L=latent,
        SPLITS=splits,
        ZERO=alone,
        num_warps=4,
        **overlapped(rows),
    )


def _attend_rows(case: _Attention, out: Tensor) -> None:
    from intarsia.kernels.mla import triton_attend as kernels

    rows, heads, _ = out.shape
    if case.name == GLUON:
        begin, end = case.rows.recurrent_segments, case.rows.starts.shape[0] - 1
        _attend_tiles(case, out, (out, out), begin, end, (1, max(1, case.tiles - 1), rows))
        return
    block = case.heads_each(_ROW_HEADS)
    kernels.attend_rows[(-(-heads // block), rows)](
        *case.tensors,
        out,
        *case.numbers,
        case.rows.recurrent_segments,
        case.rows.starts.shape[0] - 1,
        case.slots,
        HB=block,
        EACH_SIZE=power_of_two(max(1, case.tiles - 1)),
        num_warps=8 if block == _ROW_HEADS else 4,
        **case.constants,
        **overlapped(rows),
    )


def _attend_tiles(
    case: _Attention,
    out: Tensor,
    partial: tuple[Tensor, Tensor],
    begin: int,
    end: int,
    shape: tuple[int, int, int],
) -> None:
    """`partial`: sums and statistics of ranges; shape: ranges, tiles of a range, rows."""
    from intarsia.kernels.mla import gluon_attend as kernels

    splits, each, rows = shape
    blocks = -(-out.shape[1] // _ROW_HEADS)
    run = min(splits, power_of_two(-(-splits * blocks * rows // _PROGRAMS)))
    q, cache, _, selected, *where = case.tensors
    heads, latent = out.shape[1:]
    kernels.attend_tiles[(-(-splits // run), blocks, rows)](
        q,
        cache,
        selected,
        *where,
        out,
        *partial,
        *case.numbers,
        begin,
        end,
        case.slots,
        run,
        H=heads,
        L=latent,
        PAGE=case.cache.shape[1],
        EACH=each,
        EACH_SIZE=power_of_two(each),
        TILES=case.tiles,
        SPLITS=splits,
        num_warps=8,
        **overlapped(out.shape[0]),
    )
