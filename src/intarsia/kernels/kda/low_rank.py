"""Decay and gate of rows, by way of the few numbers that each has for them, and beta."""

from typing import NamedTuple

import torch
from torch import Tensor

from intarsia.kernels.choice import GLUON, Case, choose, offer
from intarsia.kernels.device import interpreting, on_device_of
from intarsia.kernels.linear import linears, linears_apart
from intarsia.kernels.linear.operands import aligned_rows, words_of
from intarsia.kernels.linear.plan import ranges_of
from intarsia.kernels.linear.product import case_of
from intarsia.kernels.weights import Weight

_WIDTH = 128
_MOST_ROWS = 64
_TILES = (8, 16, 32)
_WARPS = 4
_LOW_ROWS = 8  # of x, and 16 of a matrix, that one warp multiplies
_LOW_TILE = 16
_COLUMNS = 64  # that a warp multiplies before the next ones
_STEPS = 4  # of so many columns, whose weights are on their way at once
_MOST_HEADS = 32  # with which programs of q, k, v leave room beside them
_REGISTERS = 128  # of a thread, that a program fits beside those of q, k, v


class Matrices(NamedTuple):
    """b [H, D], then f_a and g_a [K, D], and f_b and g_b [H K, K]."""

    b: Weight
    f_a: Weight
    g_a: Weight
    f_b: Weight
    g_b: Weight


def refuse(case: Case) -> str:
    """Why the kernel of both products cannot run a case, or the empty string; shape: that of a matrix."""
    rows, width = case.shape
    if case.formats != ("BF16", "BF16"):
        return f"matrices in {' and '.join(case.formats)}; BF16 is needed"
    if width != _WIDTH or rows % _WIDTH:
        return f"matrices of {rows} rows and {width} columns; {_WIDTH} columns are needed, and as many a head"
    if case.dtype != torch.bfloat16:
        return f"rows of {str(case.dtype).removeprefix('torch.')}; bfloat16 is needed"
    return case.layout


offer("kda_gates", refuse, GLUON)


def beta_decay_gate(x: Tensor, w: Matrices, *, used: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Beta, float32 [R, H], decay and gate, [R, H K] each, of normed rows `x` [R, D].

    `used` is as for `linear`. Bits are those of `linears` with b, f_a and g_a and of `decay_and_gate` after
    it, however many rows there are.
    """
    if fits_beside(x, w):
        return launch_by_ranges(x, w, used)
    beta, f, g = linears(x, (w.b, w.f_a, w.g_a), (torch.float32, None, None), used=used)
    return beta, *decay_and_gate(f, g, w.f_b, w.g_b, used=used)


def fits_beside(x: Tensor, w: Matrices) -> bool:
    """Whether rows `x` go by kernels of ranges, which find room beside q, k and v: rows and heads are few,
    and the Gluon kernels that take all matrices otherwise give the same bits.
    """
    heads = w.b.shape[0]
    if not 0 < len(x) <= _LOW_ROWS or heads > _MOST_HEADS or heads % _LOW_TILE:
        return False
    if choose(_case(x, w.f_b, w.g_b)) != GLUON:
        return False
    first = [case_of(x, weight) for weight in (w.b, w.f_a, w.g_a)]
    sizes = [weight.shape[0] for weight in (w.f_a, w.g_a)]
    alike = all(case.formats == ("BF16",) and choose(case) == GLUON for case in first)
    return alike and sizes == [_WIDTH, _WIDTH] and heads * _WIDTH == w.f_b.shape[0]


def decay_and_gate(
    f: Tensor, g: Tensor, f_b: Weight, g_b: Weight, *, used: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Decay and gate, [R, N] each: `f` [R, K] times `f_b` [N, K], and `g` times `g_b`.

    `used` is as for `linear`. A row's bits are those of `linears_apart`, however many rows there are.
    """
    if len(f) > _MOST_ROWS or choose(_case(f, f_b, g_b)) != GLUON:
        decay, gate = linears_apart((f, g), (f_b, g_b), used=used)
        return decay, gate
    rows, columns = len(f), f_b.shape[0]
    decay = torch.empty(rows, columns, dtype=f.dtype, device=f.device)
    gate = torch.empty_like(decay)
    launch(f, g, f_b, g_b, decay, gate, used)
    return decay, gate


def launch(
    f: Tensor,
    g: Tensor,
    f_b: Weight,
    g_b: Weight,
    decay: Tensor,
    gate: Tensor,
    used: Tensor | None,
    beta: Tensor | None = None,
) -> None:
    """Both products in one kernel, into `decay` and `gate`. With `beta`, which is written then, f and g are
    both the sums of ranges that `low_rows` left.
    """
    from intarsia.kernels.kda import gluon_gates

    rows, columns = decay.shape
    tile = next((size for size in _TILES if rows <= size), _TILES[-1])
    heads = columns // _WIDTH
    overlap = not interpreting()
    with on_device_of(decay):
        gluon_gates.gate_rows[(2 * heads, -(-rows // tile))](
            f,
            f.stride(0),
            g,
            g.stride(0),
            _numbers(f_b),
            _numbers(g_b),
            decay,
            gate,
            beta,
            used,
            rows,
            H=heads,
            TILE=tile,
            RANGES=0 if beta is None else len(f),
            OVERLAP=overlap,
            num_warps=_WARPS,
            **({"launch_pdl": True} if overlap else {}),
            **({} if beta is None else {"maxnreg": _REGISTERS}),
        )


def launch_by_ranges(x: Tensor, w: Matrices, used: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """As `beta_decay_gate` of up to eight rows, in two kernels."""
    from intarsia.kernels.kda import gluon_low

    (rows, columns), heads = x.shape, w.b.shape[0]
    size = heads + 2 * _WIDTH
    ranges = ranges_of(size, columns)
    parts = torch.empty(ranges, rows, size, dtype=torch.float32, device=x.device)
    beta = torch.empty(rows, heads, dtype=torch.float32, device=x.device)
    decay = torch.empty(rows, heads * _WIDTH, dtype=x.dtype, device=x.device)
    gate = torch.empty_like(decay)
    words = aligned_rows([x])[0].view(torch.int32)
    overlap = not interpreting()
    with on_device_of(x):
        gluon_low.low_rows[(size // _LOW_TILE, ranges)](
            words,
            words.stride(0),
            words_of(w.b),
            words_of(w.f_a),
            words_of(w.g_a),
            parts,
            used,
            rows,
            H=heads,
            WIDTH=_WIDTH,
            K=columns,
            RANGES=ranges,
            DEPTH=min(_STEPS, columns // (ranges * _COLUMNS)),
            OVERLAP=overlap,
            num_warps=1,
            **({"launch_pdl": True} if overlap else {}),
        )
    launch(parts, parts, w.f_b, w.g_b, decay, gate, used, beta)
    return beta, decay, gate


def _numbers(weight: Weight) -> Tensor:
    return weight if isinstance(weight, Tensor) else weight["weight"]


def _case(f: Tensor, f_b: Weight, g_b: Weight) -> Case:
    first, second = case_of(f, f_b), case_of(f, g_b)
    layout = first.layout or second.layout
    if first.shape != second.shape:
        layout = "matrices of different shapes"
    return Case("kda_gates", first.formats + second.formats, f.dtype, f.device, first.shape, layout)
