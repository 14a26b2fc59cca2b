"""The launch of products with wide tiles of x."""

from collections.abc import Sequence

from torch import Tensor

from intarsia.kernels.linear import plan
from intarsia.kernels.linear.launch import format_of
from intarsia.kernels.linear.operands import CODES, first_tiles, scales_of, sizes_of, words_of
from intarsia.kernels.weights import Weight

TILE = 128  # rows of the weight of a program
_UNIT = 64  # columns of a buffer of x
_SHARED_BYTES = 232_448 - 1024  # of a program, less its barriers and what takes arguments to the warps
_REGISTERS = 256  # of a thread of the second warpgroup; the first has as many


def launch_wide(
    ordered: Tensor,
    weights: Sequence[Weight],
    outs: Sequence[Tensor],
    limit: float | None,
    ranges: int,
    shape: plan.Wide,
) -> None:
    """As `gluon.launch`, of rows `ordered` as `arrange_rows` leaves them."""
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from intarsia.kernels.linear import gluon_wide as kernels

    rows, k = ordered.shape
    sizes = sizes_of(weights)
    shared = shape.shared and ranges > 1
    width = max(out.element_size() for out in outs)
    # Three quarters of the ranges' total, or the output.
    kept = shape.rows * TILE * (3 if shared else width)
    first = first_tiles(sizes, TILE)
    kernels.wide_rows[(-(-rows // shape.rows) * first[-1],)](
        TensorDescriptor.from_tensor(ordered, [shape.rows, _UNIT], NVMMASharedLayout(128, 16, 2)),
        tuple(words_of(weight) for weight in weights),
        tuple(scales_of(weight) for weight in weights),
        tuple(outs),
        tuple(out.stride(0) for out in outs),
        rows,
        LIMIT=limit,
        NS=sizes,
        FIRST=first,
        K=k,
        FORMAT=CODES[format_of(weights[0])],
        RANGES=ranges,
        NT=shape.rows,
        STAGES=min(shape.stages, (_SHARED_BYTES - kept) // (shape.rows * _UNIT * 2)),
        LEAD=shape.lead,
        GROUP=max(1, shape.group // shape.rows),
        GATED=limit is not None,
        EVEN=not any(size % TILE for size in sizes),
        SHARED=shared,
        WIDTH=width,
        REGISTERS=_REGISTERS,
        num_warps=4,
        launch_pdl=True,
    )
