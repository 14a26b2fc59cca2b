"""Launches of the recurrent form, and when its kernels can run."""

from functools import cache as cached
from typing import Any

import torch
from torch import Tensor

from intarsia.kernels.choice import GLUON, Case, offer
from intarsia.kernels.device import interpreting, on_device_of
from intarsia.kernels.kda.arguments import Cache, Parameters, Projected
from intarsia.kernels.kda.gates import UNIT_EPS
from intarsia.kernels.rows import Rows

_WARPS, _GLUON_WARPS = 4, 8
_REGISTERS = 128  # of a thread, that two programs fit a multiprocessor
_STREAMS_A_PROGRAM = 4
"""As many at least make programs stay: fewer are done sooner side by side."""
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

    With `overlap` the kernel begins, where it can, while the launches before it end, and reads the caches at
    once: they must not have been written by the launch before, nor by one that had let this one begin.
    """
    heads, width = cache.memory.shape[-3], cache.memory.shape[-1]
    inputs = [
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
    ]
    where = [rows.starts, rows.streams, rows.positions, out, out.shape[0]]
    constants = [float(parameters.lower_bound), width**-0.5, float(parameters.eps), UNIT_EPS]
    shape = {"H": heads, "RING": cache.window.shape[1]}
    grid, last = (heads, rows.recurrent_segments + 1), rows.starts.shape[0] - 1
    with on_device_of(out):
        if name != GLUON:
            from intarsia.kernels.kda import triton_step

            shape |= {"COPIES": cache.memory.shape[1], "D": width, "TAPS": parameters.taps.shape[1]}
            triton_step.recurrent_rows[grid](
                *inputs, cache.current, *where, last, *constants, **shape, num_warps=_WARPS
            )
            return
        early = overlap and not interpreting()
        options = {"num_warps": _GLUON_WARPS, "OVERLAP": early} | ({"launch_pdl": True} if early else {})
        programs = staying(cache.memory, rows.recurrent_segments)
        if programs:
            from intarsia.kernels.kda import gluon_streams

            counts = [rows.recurrent_segments, last]
            gluon_streams.recurrent_streams[(programs,)](
                *inputs, _tiles_of(cache.memory), *where, *counts, *constants, **shape, **options
            )
            return
        from intarsia.kernels.kda import gluon_step

        shape |= {"COPIES": cache.memory.shape[1]}
        gluon_step.recurrent_rows[grid](
            *inputs, cache.current, *where, last, *constants, **shape, **options, maxnreg=_REGISTERS
        )


def staying(memory: Tensor, segments: int) -> int:
    """Programs that stay and deal with many streams each, 0 where every stream's heads get their own.

    They stay where there is more to do than fits the device at once, and only one copy of a state, so that no
    segment has more than one row.
    """
    heads, multiprocessors = memory.shape[-3], _multiprocessors(memory.device)
    together = multiprocessors // heads
    if memory.shape[1] > 1 or segments < _STREAMS_A_PROGRAM * together or not together:
        return 0
    return together * heads


@cached
def _multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return 0
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _tiles_of(memory: Tensor) -> Any:
    """A descriptor of states, one a tile."""
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    width = memory.shape[-1]
    layout = NVMMASharedLayout(128, 32, 2)
    return TensorDescriptor.from_tensor(memory.view(-1, width), [width, width], layout)
