"""Decay and gate from the few numbers a row has for them."""

import torch
from torch import Tensor

from intarsia.kernels.choice import GLUON, Case, choose, offer
from intarsia.kernels.device import interpreting, on_device_of
from intarsia.kernels.linear import linears_apart
from intarsia.kernels.linear.product import case_of
from intarsia.kernels.weights import Weight

_WIDTH = 128
_MOST_ROWS = 64
_TILES = (8, 16, 32)
_WARPS = 4


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
    f: Tensor, g: Tensor, f_b: Weight, g_b: Weight, decay: Tensor, gate: Tensor, used: Tensor | None
) -> None:
    """Both products in one kernel, into `decay` and `gate`."""
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
            used,
            rows,
            H=heads,
            TILE=tile,
            OVERLAP=overlap,
            num_warps=_WARPS,
            **({"launch_pdl": True} if overlap else {}),
        )


def _numbers(weight: Weight) -> Tensor:
    return weight if isinstance(weight, Tensor) else weight["weight"]


def _case(f: Tensor, f_b: Weight, g_b: Weight) -> Case:
    first, second = case_of(f, f_b), case_of(f, g_b)
    layout = first.layout or second.layout
    if first.shape != second.shape:
        layout = "matrices of different shapes"
    return Case("kda_gates", first.formats + second.formats, f.dtype, f.device, first.shape, layout)
