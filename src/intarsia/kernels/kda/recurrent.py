"""Launches of the recurrent form, and when its kernels can run."""

import torch
from torch import Tensor

from intarsia.kernels.choice import GLUON, Case, offer
from intarsia.kernels.device import interpreting, on_device_of
from intarsia.kernels.kda.arguments import Cache, Parameters, Projected
from intarsia.kernels.kda.gates import UNIT_EPS
from intarsia.kernels.rows import Rows

_WARPS = 4
_GLUON_WIDTH, _GLUON_TAPS = 128, 4


def refuse(case: Case) -> str:
    """Why the Triton step cannot run a case, or the empty string; shape: heads, width of a head, taps."""
    width = case.shape[1]
    if width < 16 or width > 128 or width & (width - 1):
        return f"heads of {width} columns; 16, 32, 64 or 128 are needed"
    if case.dtype not in (torch.bfloat16, torch.float32):
        return f"rows of {str(case.dtype).removeprefix('torch.')}; bfloat16 or float32 is needed"
    return ""


def refuse_gluon(case: Case) -> str:
    """The same for the step whose registers are laid out for one width."""
    _, width, taps = case.shape
    if width != _GLUON_WIDTH:
        return f"heads of {width} columns; {_GLUON_WIDTH} are needed"
    if taps != _GLUON_TAPS:
        return f"{taps} taps; {_GLUON_TAPS} are needed"
    if case.dtype != torch.bfloat16:
        return f"rows of {str(case.dtype).removeprefix('torch.')}; bfloat16 is needed"
    return ""


offer("kda_step", refuse)
offer("kda_step", refuse_gluon, GLUON)


def launch(
    name: str,
    projected: Projected,
    parameters: Parameters,
    cache: Cache,
    rows: Rows,
    out: Tensor,
    *,
    overlap: bool = False,
) -> None:
    """The recurrent segments of a step in one kernel, into `out` [R, H D]; padding rows become zero.

    With `overlap` the kernel begins, where it can, while the launch before it ends, and reads the caches at
    once: they must not have been written by that launch.
    """
    heads, width = cache.memory.shape[-3], cache.memory.shape[-1]
    early = overlap and name == GLUON and not interpreting()
    arguments = [
        projected.raw,
        projected.raw.stride(0),
        projected.decay,
        projected.decay.stride(0),
        projected.beta,
        projected.beta.stride(0),
        projected.gate,
        projected.gate.stride(0),
        parameters.taps.contiguous(),
        parameters.a_log,
        parameters.dt_bias,
        parameters.norm,
        cache.window,
        cache.memory,
        cache.current,
        rows.starts,
        rows.streams,
        rows.positions,
        out,
        out.shape[0],
        rows.starts.shape[0] - 1,
        float(parameters.lower_bound),
        width**-0.5,
        float(parameters.eps),
        UNIT_EPS,
    ]
    shape = {"H": heads, "COPIES": cache.memory.shape[1], "RING": cache.window.shape[1]}
    grid = (heads, rows.recurrent_segments + 1)
    with on_device_of(out):
        if name == GLUON:
            from intarsia.kernels.kda import gluon_step

            options = {"launch_pdl": True} if early else {}
            gluon_step.recurrent_rows[grid](*arguments, **shape, OVERLAP=early, num_warps=_WARPS, **options)
        else:
            from intarsia.kernels.kda import triton_step

            triton_step.recurrent_rows[grid](
                *arguments, **shape, D=width, TAPS=parameters.taps.shape[1], num_warps=_WARPS
            )
