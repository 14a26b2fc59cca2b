"""The Triton product's configuration per case, and its launch."""

from dataclasses import dataclass

import torch
from torch import Tensor

from intarsia.formats.fp8_block import SIDE, scale_name_of
from intarsia.formats.stored import Stored
from intarsia.kernels.choice import Case, offer
from intarsia.kernels.device import byte_view, on_device_of, require_packed_columns, wide, word_view
from intarsia.kernels.weights import Weight

FORMATS = ("BF16", "F32", "MXFP8", "FP8_PB_WO")
_CODES = {"BF16": 0, "F32": 0, "MXFP8": 1, "FP8_PB_WO": 2}

# Columns of a tile and tiles in flight. Part of a format's order of additions: one value whatever the rows.
_TILE = {"BF16": (64, 4), "F32": (32, 3), "MXFP8": (128, 4), "FP8_PB_WO": (128, 4)}
_WIDE_TILE = (32, 2)
# Up to so many rows: rows of x and of the weight a program takes, warps. None of these touches the order
# of additions.
_SHAPES = ((16, 16, 64, 4), (64, 64, 64, 4), (None, 64, 128, 8))
_WIDE_SHAPES = ((16, 16, 64, 4), (None, 32, 64, 4))
_APART_UP_TO = 64  # rows for which the ranges of K are programs of their own
# Programs that keep the card's 132 multiprocessors reading, and the columns below which a range is too short.
_ENOUGH_PROGRAMS, _SHORTEST_RANGE = 200, 512
_RANGE_CHOICES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Ranges:
    """How K is cut: `count` ranges of `steps` tiles. A function of the matrix alone."""

    count: int
    steps: int


def ranges_of(rows: int, columns: int, tile: int) -> Ranges:
    """Enough ranges to keep a GPU busy at one row, each of at least 512 columns."""
    tiles = -(-columns // tile)
    count = 1
    for choice in _RANGE_CHOICES:
        count = choice
        if choice * -(-rows // 64) >= _ENOUGH_PROGRAMS or columns // (2 * choice) < _SHORTEST_RANGE:
            break
    return Ranges(count, -(-tiles // count))


def refuse(case: Case) -> str:
    """Why the Triton product cannot run a case, or the empty string."""
    if case.formats[0] not in FORMATS:
        return f"no kernel for {case.formats[0]}; there is one for {', '.join(FORMATS)}"
    if case.formats[0] == "FP8_PB_WO" and case.shape[-1] % 2:
        return f"{case.shape[-1]} columns; an even number is needed"
    if case.dtype not in (torch.bfloat16, torch.float32):
        return f"rows of {str(case.dtype).removeprefix('torch.')}; bfloat16 or float32 is needed"
    return ""


offer("linear", refuse)


def format_of(weight: Weight) -> str:
    """The format's name; of a plain tensor that of its dtype."""
    if isinstance(weight, Stored):
        return weight.format
    return {torch.bfloat16: "BF16", torch.float32: "F32", torch.float16: "F16"}.get(
        weight.dtype, str(weight.dtype)
    )


def launch(
    x: Tensor, weight: Weight, out_dtype: torch.dtype | None = None, out: Tensor | None = None
) -> Tensor:
    """Rows `x` [R, K] times a stored matrix [N, K], summed in float32; [R, N] in `out_dtype` or that of `x`.

    The weight's codes are exact, and block scales of FP8_PB_WO are applied in float32, so the result is
    nearer to the decoded weight's than a product of rounded weights. Bits of a row depend on the row, the
    matrix and the two dtypes alone.
    """
    from intarsia.kernels.linear import triton_linear as kernels

    name = format_of(weight)
    codes, scale = _tensors(weight)
    require_packed_columns("linear", codes, scale, x)
    rows, (n, k) = x.shape[0], weight.shape
    full = wide(x.dtype, codes.dtype)
    tile, stages = _WIDE_TILE if full else _TILE[name]
    top, left = weight.origin if isinstance(weight, Stored) else (0, 0)
    parts = weight.row_parts if isinstance(weight, Stored) else 1
    ranges = ranges_of(n, k, tile) if not left else ranges_of(n, k + left, tile)
    tokens, block_rows, warps = _shape(_WIDE_SHAPES if full else _SHAPES, rows)
    apart = ranges.count > 1 and rows <= _APART_UP_TO
    if out is None:
        out = torch.empty(rows, n, dtype=out_dtype or x.dtype, device=x.device)
    target = torch.empty(ranges.count, rows, n, dtype=torch.float32, device=x.device) if apart else out
    grid = (-(-n // block_rows), -(-rows // tokens), ranges.count if apart else 1)
    with on_device_of(x):
        kernels.linear_rows[grid](
            x,
            codes,
            scale,
            target,
            rows,
            x.stride(0),
            codes.stride(0),
            scale.stride(0),
            n,
            K=k,
            FORMAT=_CODES[name],
            TOP=top,
            LEFT=left,
            PART_ROWS=n // parts,
            PART_BANDS=-(-(n // parts + top) // SIDE),
            BN=block_rows,
            BK=tile,
            NT=tokens,
            RANGES=ranges.count,
            STEPS=ranges.steps,
            APART=apart,
            EVEN=not left and k == ranges.count * ranges.steps * tile,
            WIDE=full,
            STAGES=stages,
            num_warps=warps,
        )
        if apart:
            size = 256
            kernels.add_ranges[(-(-rows * n // size),)](
                target, out, rows * n, RANGES=ranges.count, SIZE=size, num_warps=2
            )
    return out


def _shape(shapes: tuple[tuple[int | None, int, int, int], ...], rows: int) -> tuple[int, int, int]:
    return next(rest for most, *rest in shapes if most is None or rows <= most)  # type: ignore[return-value]


def _tensors(weight: Weight) -> tuple[Tensor, Tensor]:
    """Codes [N, K] and scales [rows, columns] of a matrix; scales are the codes where there are none."""
    if isinstance(weight, Tensor):
        return weight, weight
    codes = word_view("linear", weight["weight"])
    if weight.format == "FP8_PB_WO":
        scale = weight[scale_name_of(weight)]
        return codes, scale.reshape(scale.shape[0], -1)
    return codes, byte_view(weight[next((suffix for suffix in weight if suffix != "weight"), "weight")])
