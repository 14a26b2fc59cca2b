"""Launches of latent attention's kernels, in Gluon for Hopper and in Triton."""

import torch
from torch import Tensor

from intarsia.kernels.choice import GLUON, TRITON, Case, offer
from intarsia.kernels.device import on_device_of, overlapped, power_of_two
from intarsia.kernels.mla.case import LOG2_E, ROW_HEADS, Attention
from intarsia.kernels.mla.launch_few import FEW_ROWS, attend_few
from intarsia.kernels.rows import Rows

# Up to so many rows, heads and warps of a program that takes a range. No part of the order of additions.
_RANGE_HEADS = ((4, 16, 4), (None, 32, 4))
_ROWS_AT_ONCE = 128  # rows in the recurrent form whose ranges exist at once: 1 MiB each at 64 heads of 512
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


def attend(
    q: Tensor,
    cache: Tensor,
    selected: Tensor,
    rows: Rows,
    scale: float,
    latent_scales: Tensor | None = None,
    name: str = TRITON,
    *,
    early: bool = True,
) -> Tensor:
    """As `mla.attend`, by the kernels of that name: two launches for rows in the recurrent form, one for
    those in the prompt form.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    segments, recurrent = rows.starts.shape[0] - 1, rows.recurrent_segments
    factor = scale * LOG2_E
    case = Attention(name, q.contiguous(), cache, latent_scales, selected.contiguous(), rows, factor, early)
    with on_device_of(q):
        if recurrent:
            _attend_ranges(case, out, alone=recurrent == segments)
        if recurrent < segments:
            _attend_rows(case, out)
    return out


def _attend_ranges(case: Attention, out: Tensor, *, alone: bool) -> None:
    """Rows in the recurrent form, which are all rows that are real if `alone`. They may be any of the first
    rows: the host does not know how many, and what lies between the two kernels is bounded by taking parts.
    """
    rows = out.shape[0]
    splits, each = case.ranges
    most = min(rows, _ROWS_AT_ONCE)
    parts, stats = case.room(most)
    for base in range(0, rows, most):
        count = min(most, rows - base)
        if case.name == GLUON and rows <= FEW_ROWS:
            attend_few(case, (parts, stats))
        elif case.name == GLUON:
            _attend_tiles(case, out, (parts, stats), (splits, each), base, count)
        else:
            _attend_ranges_plainly(case, (parts, stats), (splits, each), base, count)
        _add_ranges(case, (parts, stats), out, base, count, alone=alone)


def _attend_ranges_plainly(
    case: Attention, partial: tuple[Tensor, Tensor], shape: tuple[int, int], base: int, count: int
) -> None:
    from intarsia.kernels.mla import triton_attend as kernels

    splits, each = shape
    block, warps = next(rest for limit, *rest in _RANGE_HEADS if limit is None or count <= limit)
    block = case.heads_each(block)
    kernels.attend_ranges[(splits, -(-case.q.shape[1] // block), count)](
        *case.tensors,
        *partial,
        *case.numbers,
        base,
        case.rows.recurrent_segments,
        case.slots,
        HB=block,
        EACH=each,
        EACH_SIZE=power_of_two(each),
        SPLITS=splits,
        # Codes are decoded in registers, and four warps have too few.
        num_warps=warps if case.scales is None else 8,
        **case.constants,
        **case.overlapped,
    )


def _add_ranges(
    case: Attention, partial: tuple[Tensor, Tensor], out: Tensor, base: int, count: int, *, alone: bool
) -> None:
    from intarsia.kernels.mla import triton_attend as kernels

    rows, heads, latent = out.shape
    kernels.add_ranges[(heads, count)](
        *partial,
        case.rows.starts,
        out,
        base,
        case.rows.recurrent_segments,
        H=heads,
        L=latent,
        SPLITS=partial[0].shape[2],
        ZERO=alone,
        num_warps=4,
        **overlapped(rows),
    )


def _attend_rows(case: Attention, out: Tensor) -> None:
    from intarsia.kernels.mla import triton_attend as kernels

    rows, heads, _ = out.shape
    if case.name == GLUON:
        _attend_tiles(case, out, (out, out), (1, max(1, case.tiles - 1)), 0, rows)
        return
    block = case.heads_each(ROW_HEADS)
    kernels.attend_rows[(-(-heads // block), rows)](
        *case.tensors,
        out,
        *case.numbers,
        case.rows.recurrent_segments,
        case.rows.starts.shape[0] - 1,
        case.slots,
        HB=block,
        EACH_SIZE=power_of_two(max(1, case.tiles - 1)),
        num_warps=8 if block == ROW_HEADS else 4,
        **case.constants,
        **case.overlapped,
    )


def _attend_tiles(
    case: Attention,
    out: Tensor,
    partial: tuple[Tensor, Tensor],
    shape: tuple[int, int],
    base: int,
    count: int,
) -> None:
    """`partial`: sums and statistics of ranges, or `out` twice for the prompt form; shape: ranges, and tiles
    of a range.
    """
    from intarsia.kernels.mla import gluon_attend as kernels

    splits, each = shape
    heads, latent = out.shape[1:]
    blocks = -(-heads // ROW_HEADS)
    run = min(splits, power_of_two(-(-splits * blocks * count // _PROGRAMS)))
    q, cache, _, selected, *where = case.tensors
    recurrent, segments = case.rows.recurrent_segments, case.rows.starts.shape[0] - 1
    prompt = partial[0] is out
    kernels.attend_tiles[(-(-splits // run), blocks, count)](
        q,
        cache,
        selected,
        *where,
        out,
        *partial,
        *case.numbers,
        base,
        recurrent if prompt else 0,
        segments if prompt else recurrent,
        case.slots,
        run,
        H=heads,
        L=latent,
        PAGE=case.cache.shape[1],
        EACH=each,
        EACH_SIZE=power_of_two(each),
        TILES=case.tiles,
        SPLITS=splits,
        PROMPT=prompt,
        EARLY=case.early,
        num_warps=8,
        **case.overlapped,
    )
