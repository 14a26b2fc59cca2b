"""The Triton router's configuration and its launches."""

from math import gcd

import torch
from torch import Tensor

from intarsia.formats.stored import Stored
from intarsia.kernels.choice import Case, offer
from intarsia.kernels.device import interpreting, on_device_of, power_of_two, wide
from intarsia.kernels.router.reference import WEIGHT_EPS, Routing
from intarsia.kernels.rows import Rows
from intarsia.kernels.weights import Weight

FORMATS = ("BF16", "F32")
_COLUMNS, _WIDE_COLUMNS = 128, 32  # of a tile; part of the order of additions
_RANGES, _SHORTEST_RANGE = 8, 512
# Up to so many rows: experts and rows of a program, tiles in flight, warps. None of it touches the order of
# additions.
_SHAPES = ((16, 16, 16, 4, 1), (128, 16, 32, 3, 2), (None, 64, 64, 3, 4))
_WIDE_SHAPES = ((None, 16, 16, 2, 4),)
# Of the kernel that loads its weights before it waits: the most rows, columns of a range that it can hold,
# experts of a program, warps.
_EARLY_ROWS, _EARLY_COLUMNS, _EARLY_EXPERTS, _EARLY_WARPS = 16, (128, 256, 512), 16, 2
_CHOICE_WARPS = 1
_OVERLAP_UP_TO = 16


def refuse(case: Case) -> str:
    """Why the Triton router cannot run a case, or the empty string; shape: experts, width."""
    if case.formats[0] not in FORMATS:
        return f"no kernel for {case.formats[0]}; there is one for {', '.join(FORMATS)}"
    if case.dtype != torch.bfloat16:
        return f"rows of {str(case.dtype).removeprefix('torch.')}; bfloat16 is needed"
    if case.shape[1] % 16:
        return f"a width of {case.shape[1]}; a multiple of 16 is needed"
    return ""


offer("router", refuse)


def ranges_of(width: int) -> int:
    """Ranges of columns that are summed apart: as many as keep a GPU busy at one row. The width's alone."""
    return next(count for count in (_RANGES, 4, 2, 1) if count == 1 or width % (count * _SHORTEST_RANGE) == 0)


def launch(
    x: Tensor,
    weight: Weight,
    bias: Tensor,
    rows: Rows,
    *,
    top: int,
    scaling: float,
    arrange: bool = False,
) -> Routing:
    """The `top` experts by sigmoid(x W^T) + bias, ties to the lowest number, and their weights.

    Scores are sums of exact products in float32. Padding rows get experts of -1 and weights of zero. The host
    looks at no value.
    """
    from intarsia.kernels.router import triton_router as kernels

    matrix = (weight["weight"] if isinstance(weight, Stored) else weight).contiguous()
    (experts, width), count = matrix.shape, x.shape[0]
    x = x.contiguous()
    bias = bias.float()  # before the scores: `choose` reads it before it waits for them
    ranges = ranges_of(width)
    full = wide(x.dtype, matrix.dtype)
    shapes = _WIDE_SHAPES if full else _SHAPES
    each, some, stages, warps = next(rest for most, *rest in shapes if most is None or count <= most)
    overlap = count <= _OVERLAP_UP_TO and not interpreting()
    options = {"launch_pdl": True} if overlap else {}
    parts = torch.empty(ranges, count, experts, dtype=torch.float32, device=x.device)
    chosen = torch.empty(count, top, dtype=torch.int32, device=x.device)
    weights = torch.empty(count, top, dtype=torch.float32, device=x.device)
    early = count <= _EARLY_ROWS and not full and width // ranges in _EARLY_COLUMNS
    places, more = _places(experts)
    arranged = torch.empty_like(x) if early and arrange else None
    with on_device_of(x):
        if early:
            programs = -(-experts // _EARLY_EXPERTS) + (0 if arranged is None else count)
            kernels.score_few[(programs, ranges)](
                x,
                matrix,
                parts,
                x if arranged is None else arranged,
                count,
                EXPERTS=experts,
                K=width,
                RANGES=ranges,
                BE=_EARLY_EXPERTS,
                NT=_EARLY_ROWS,
                OVERLAP=overlap,
                num_warps=_EARLY_WARPS,
                **options,
            )
        else:
            kernels.score[(-(-experts // each), ranges, -(-count // some))](
                x,
                matrix,
                parts,
                count,
                EXPERTS=experts,
                K=width,
                RANGES=ranges,
                BE=each,
                BK=gcd(width // ranges, _WIDE_COLUMNS if full else _COLUMNS),
                NT=some,
                WIDE=full,
                STAGES=stages,
                OVERLAP=overlap,
                num_warps=warps,
                **options,
            )
        kernels.choose[(count,)](
            parts,
            bias,
            rows.streams,
            chosen,
            weights,
            count,
            top,
            float(scaling),
            WEIGHT_EPS,
            EXPERTS=experts,
            RANGES=ranges,
            PLACES=places,
            MORE=more,
            SLOTS=1 << (top - 1).bit_length(),
            OVERLAP=overlap,
            num_warps=_CHOICE_WARPS,
            **options,
        )
    return Routing(chosen, weights, arranged)


def _places(experts: int) -> tuple[int, int]:
    """Powers of two, 32 or more, that hold so many together with as little as can be left over."""
    places = 1 << (experts.bit_length() - 1)
    if places == experts or places < 32:
        return max(32, power_of_two(experts)), 0
    return places, max(32, power_of_two(experts - places))
