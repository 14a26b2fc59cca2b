"""The register kernels' reasons for refusing, and their launch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from intarsia.formats.fp8_block import SIDE, scale_name_of
from intarsia.kernels.choice import GLUON, Case, offer
from intarsia.kernels.device import byte_view, on_device_of
from intarsia.kernels.linear import candidates, plan
from intarsia.kernels.linear.launch import format_of
from intarsia.kernels.linear.launch_wide import launch_wide
from intarsia.kernels.linear.operands import (
    CODES,
    aligned_rows,
    first_tiles,
    scales_of,
    sizes_of,
    words_of,
)
from intarsia.kernels.tuning import tuned
from intarsia.kernels.weights import Weight

MOST_MATRICES = 8
"""Matrices that one launch takes."""
_FEW_ROWS = (8, 16, 32)  # of x, that one program multiplies
_REGISTERS = 128  # of a thread, that two programs of eight warps fit a multiprocessor
_HALF = 128  # rows of gate or up: whole blocks, and whole tiles
_ARRANGED = 16  # rows of a program that puts them in the order of products
_ADDED = 256  # columns of a program that adds ranges
_LARGEST_EXPONENT = 134
"""Of MXFP8: 2^(byte - 127) * 2^120 must be a bfloat16."""
_FITTING: Any = WeakIdKeyDictionary()


def refuse(case: Case) -> str:
    """Why the register kernels cannot run a case, or the empty string."""
    if case.formats[0] not in CODES:
        return f"no kernel for {case.formats[0]}; there is one for {', '.join(CODES)}"
    if case.dtype != torch.bfloat16:
        return f"rows of {str(case.dtype).removeprefix('torch.')}; bfloat16 is needed"
    if not plan.ranges_of(*case.shape):
        return f"{case.shape[-1]} columns; a multiple of {plan.STEP} is needed"
    if case.shape[0] * case.shape[1] >= 1 << 32:
        return "2^32 weights or more; offsets are 32 bits wide"
    return case.layout


offer("linear", refuse, GLUON)


def unlike_a_whole_matrix(weight: Weight) -> str:
    """What about a weight's memory keeps the register kernels from reading it, or the empty string."""
    tensors = [weight] if isinstance(weight, Tensor) else list(weight.tensors.values())
    if not all(tensor.is_contiguous() for tensor in tensors):
        return "rows with gaps between them"
    if tensors[0].data_ptr() % 16:
        return "a first row that does not begin on a multiple of 16 bytes"
    if isinstance(weight, Tensor):
        return ""
    if weight.format == "FP8_PB_WO":
        if weight.origin != (0, 0):
            return "a first row or column inside a block"
        if weight.row_parts > 1 and weight.rows // weight.row_parts % SIDE:
            return "row parts that end inside a block"
        if weight[scale_name_of(weight)].dtype != torch.float32:
            return "block scales that are not float32"
    if weight.format == "MXFP8" and not _exponents_fit(weight["weight_scale"]):
        return f"exponent bytes above {_LARGEST_EXPONENT}"
    return ""


def refuse_halves(weight: Weight) -> str:
    """Why gate and up cannot be taken side by side, or the empty string."""
    if weight.shape[0] % (2 * _HALF):
        return f"halves of {weight.shape[0] / 2:g} rows; a multiple of {_HALF} is needed"
    return ""


def _exponents_fit(scale: Tensor) -> bool:
    """Looks once at the scales of a weight, the first time it is used.

    Inside a graph's capture nothing can be looked at; a weight used there first is taken not to fit.
    """
    known = _FITTING.get(scale)
    if known is None:
        if scale.is_meta:
            return True
        if scale.is_cuda and torch.cuda.is_current_stream_capturing():
            return False
        known = bool((byte_view(scale) <= _LARGEST_EXPONENT).all())
        _FITTING[scale] = known
    return bool(known)


def launch(
    xs: Sequence[Tensor],
    weights: Sequence[Weight],
    outs: Sequence[Tensor],
    *,
    used: Tensor | None = None,
    limit: float | None = None,
    overlap: bool = False,
    releases: bool = False,
) -> None:
    """Write the product of `xs[i]` [R, K] (or of the only one) with each of up to eight `weights` [N_i, K] of
    one format into `outs[i]` [R, N_i]. With `limit` the one weight is gate over up, and the output their
    SwiGLU. With `overlap` the product of a few rows begins, with its weights, while the kernel before runs;
    with `releases` it lets the kernel after it begin once that one is over.

    Products are of exact weights, summed in float32 and rounded once. A row's bits depend on the row, the
    matrices and the output's dtype alone.
    """
    rows, k = xs[0].shape
    if not rows:
        return
    ranges = plan.ranges_of(sum(sizes_of(weights)), k)
    shape = _shape(xs[0], weights, limit, ranges)
    with on_device_of(xs[0]):
        if isinstance(shape, plan.Few):
            _launch_few(xs, weights, outs, used, limit, ranges, shape, overlap, releases)
            return
        together = [(xs[0], weights, outs)]
        if len(xs) > 1:
            together = [(x, [weight], [out]) for x, weight, out in zip(xs, weights, outs, strict=True)]
        for x, some, targets in together:
            ordered = _ordered(x, used, format_of(some[0]))
            if isinstance(shape, plan.Wide):
                launch_wide(ordered, some, targets, limit, ranges, shape)
            else:
                _launch_many(ordered, some, targets, used, limit, ranges, shape)


def _launch_few(
    xs: Sequence[Tensor],
    weights: Sequence[Weight],
    outs: Sequence[Tensor],
    used: Tensor | None,
    limit: float | None,
    ranges: int,
    shape: plan.Few,
    overlap: bool,
    releases: bool,
) -> None:
    from intarsia.kernels.linear import gluon_few as kernels

    rows, k = xs[0].shape
    name = format_of(weights[0])
    words = [x.view(torch.int32) for x in aligned_rows(xs)]
    sizes = sizes_of(weights)
    first = first_tiles(sizes, shape.tile)
    kernels.few_rows[(first[-1],)](
        tuple(words),
        tuple(words_of(weight) for weight in weights),
        tuple(scales_of(weight) for weight in weights),
        tuple(outs),
        tuple(out.stride(0) for out in outs),
        used,
        rows,
        words[0].stride(0),
        LIMIT=limit,
        NS=sizes,
        FIRST=first,
        K=k,
        FORMAT=CODES[name],
        RANGES=ranges,
        WARPS=shape.warps,
        BN=shape.tile,
        NT=next(size for size in _FEW_ROWS if rows <= size),
        CHUNKS=shape.chunks,
        DEPTH=shape.depth,
        AHEAD=shape.ahead,
        RELEASES=releases,
        GATED=limit is not None,
        EVEN=not any(size % shape.tile for size in sizes),
        num_warps=ranges * shape.warps,
        launch_pdl=overlap,
        maxnreg=_REGISTERS if 8 < rows <= 16 and name != "BF16" else None,
    )


def _ordered(x: Tensor, used: Tensor | None, name: str) -> Tensor:
    """Rows in the order that they multiply in; those from `used` on are zeros."""
    from intarsia.kernels.linear import arrange

    rows, k = x.shape
    ordered = torch.empty(rows, k, dtype=x.dtype, device=x.device)
    arrange.arrange_rows[(-(-rows // _ARRANGED), k // plan.STEP)](
        x, ordered, used, rows, x.stride(0), K=k, CODES=name != "BF16", BR=_ARRANGED, num_warps=2,
    )  # fmt: skip
    return ordered


def _launch_many(
    ordered: Tensor,
    weights: Sequence[Weight],
    outs: Sequence[Tensor],
    used: Tensor | None,
    limit: float | None,
    ranges: int,
    shape: plan.Many,
) -> None:
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from intarsia.kernels.linear import arrange
    from intarsia.kernels.linear import gluon_many as kernels

    rows, k = ordered.shape
    name = format_of(weights[0])
    sizes = sizes_of(weights)
    layout = NVMMASharedLayout(128, 16, 2)
    first = first_tiles(sizes, shape.tile * shape.parts)
    # With blocks and large tiles the activation's registers are one too many: it goes to the second kernel.
    later = shape.apart or (limit is not None and name == "FP8_PB_WO" and shape.rows > 64)
    parts = ranges if shape.apart else 1
    targets = _parts(ordered, sizes, parts) if later else list(outs)
    kernels.many_rows[(-(-rows // shape.rows) * first[-1], parts)](
        TensorDescriptor.from_tensor(ordered, [shape.rows, plan.STEP], layout),
        tuple(words_of(weight) for weight in weights),
        tuple(scales_of(weight) for weight in weights),
        tuple(targets),
        tuple(target.stride(-2) for target in targets),
        used,
        rows,
        LIMIT=limit,
        NS=sizes,
        FIRST=first,
        K=k,
        FORMAT=CODES[name],
        RANGES=ranges,
        APART=shape.apart,
        WARPS=shape.warps,
        BN=shape.tile,
        PARTS=shape.parts,
        NT=shape.rows,
        STAGES=shape.stages,
        LEAD=shape.lead,
        GROUP=max(1, shape.group // shape.rows),
        FINE=shape.fine and name != "BF16" and limit is None,
        GATED=limit is not None and not later,
        EVEN=not any(size % (shape.tile * shape.parts) for size in sizes),
        num_warps=shape.warps,
        launch_pdl=True,
    )
    if not later:
        return
    sizes = tuple(out.shape[1] for out in outs)
    first = first_tiles(sizes, _ADDED)
    arrange.add_parts[(rows, first[-1])](
        targets[0],
        tuple(outs),
        tuple(out.stride(0) for out in outs),
        used,
        rows,
        targets[0].stride(0),
        targets[0].stride(1),
        LIMIT=limit,
        NS=sizes,
        FIRST=first,
        RANGES=parts,
        SIZE=_ADDED,
        num_warps=2,
        launch_pdl=True,
    )


def _shape(x: Tensor, weights: Sequence[Weight], limit: float | None, ranges: int) -> plan.Shape:
    """What was found to be fastest on this device, or the plan's own shape."""
    operation = candidates.LINEAR if limit is None else candidates.SWIGLU
    name, (rows, k), size = format_of(weights[0]), x.shape, sum(sizes_of(weights))
    found: plan.Shape | None = tuned(operation, (name,), (size, k, ranges), rows, x.device)
    return found or plan.shape(ranges, size, k, rows, name)


def _parts(x: Tensor, sizes: tuple[int, ...], count: int) -> list[Tensor]:
    """Float32 sums of each range, the matrices side by side: views [count, R, N_i] of one tensor."""
    parts = torch.empty(count, x.shape[0], sum(sizes), dtype=torch.float32, device=x.device)
    return list(torch.split(parts, list(sizes), -1))
