"""KDA between its projections, for all rows of a step: the operations of this folder in their order."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from intarsia.kernels.choice import TRITON, Case, choose, offer
from intarsia.kernels.device import on_device_of
from intarsia.kernels.elementwise import sigmoid
from intarsia.kernels.kda.convolution import convolve
from intarsia.kernels.kda.gates import UNIT_EPS, log_decay, unit_heads
from intarsia.kernels.kda.output import gated_norm
from intarsia.kernels.kda.scan import scan
from intarsia.kernels.rows import Rows

_WARPS = 4


@dataclass(frozen=True, slots=True)
class Projected:
    """What the projections give for every row: raw [R, 3 H D] (q, k, v), decay and gate [R, H D], beta [R, H]
    before its sigmoid.
    """

    raw: Tensor
    decay: Tensor
    gate: Tensor
    beta: Tensor


@dataclass(frozen=True, slots=True)
class Parameters:
    """taps [3 H D, T], a_log [H], dt_bias [H D], norm [D] and the two constants."""

    taps: Tensor
    a_log: Tensor
    dt_bias: Tensor
    norm: Tensor
    lower_bound: float
    eps: float


def refuse(case: Case) -> str:
    """Why the Triton step cannot run a case, or the empty string; shape: heads, width of a head."""
    width = case.shape[1]
    if width < 16 or width > 128 or width & (width - 1):
        return f"heads of {width} columns; 16, 32, 64 or 128 are needed"
    if case.dtype not in (torch.bfloat16, torch.float32):
        return f"rows of {str(case.dtype).removeprefix('torch.')}; bfloat16 or float32 is needed"
    return ""


offer("kda_step", refuse)


def attention_step(
    projected: Projected,
    parameters: Parameters,
    memory: Tensor,
    window: Tensor,
    current: Tensor,
    rows: Rows,
) -> Tensor:
    """What goes into the output projection, [R, H D] in the dtype of `raw`; `memory` and `window` are
    advanced.

    memory [streams, copies, H, D, D], window [streams, ring, 3 H D] and current [streams] as in `scan`
    and `convolve`. Recurrent segments may run in one kernel; those in the prompt form run in chunks. A
    form's bits do not depend on what else is in the step.
    """
    heads, width = memory.shape[-3], memory.shape[-1]
    raw = projected.raw
    case = Case("kda_step", (), raw.dtype, raw.device, (heads, width))
    if choose(case) != TRITON or not rows.recurrent_segments:
        return reference_step(projected, parameters, memory, window, current, rows)
    out = launch(projected, parameters, memory, window, current, rows)
    if rows.starts.shape[0] - 1 == rows.recurrent_segments:
        return out
    begins = rows.starts[rows.recurrent_segments]
    prompts = replace(rows, starts=rows.starts[rows.recurrent_segments :], recurrent_segments=0)
    rest = reference_step(projected, parameters, memory, window, current, prompts)
    is_prompt = torch.arange(raw.shape[0], device=raw.device) >= begins
    return torch.where(is_prompt.unsqueeze(1), rest, out)


def reference_step(
    projected: Projected,
    parameters: Parameters,
    memory: Tensor,
    window: Tensor,
    current: Tensor,
    rows: Rows,
) -> Tensor:
    """The specification: the operations one after the other."""
    heads, width = memory.shape[-3], memory.shape[-1]
    q, k, v = convolve(projected.raw, parameters.taps, window, rows).chunk(3, -1)
    read = scan(
        unit_heads(q, heads) * width**-0.5,
        unit_heads(k, heads),
        v.reshape(-1, heads, width),
        log_decay(projected.decay, parameters.a_log, parameters.dt_bias, parameters.lower_bound),
        sigmoid(projected.beta.float()),
        memory,
        current,
        rows,
    )
    return gated_norm(read, projected.gate, parameters.norm, parameters.eps, projected.raw.dtype)


def launch(
    projected: Projected,
    parameters: Parameters,
    memory: Tensor,
    window: Tensor,
    current: Tensor,
    rows: Rows,
) -> Tensor:
    """The recurrent segments of a step in one kernel; rows of other segments and padding rows are zero."""
    from intarsia.kernels.kda import triton_step as kernels

    _, copies, heads, width, _ = memory.shape
    raw = projected.raw.contiguous()
    out = torch.zeros(raw.shape[0], heads * width, dtype=raw.dtype, device=raw.device)
    with on_device_of(raw):
        kernels.recurrent_rows[(heads, rows.recurrent_segments)](
            raw,
            projected.decay.contiguous(),
            projected.beta.contiguous(),
            projected.gate.contiguous(),
            parameters.taps.contiguous(),
            parameters.a_log,
            parameters.dt_bias,
            parameters.norm,
            window,
            memory,
            current,
            rows.starts,
            rows.streams,
            rows.positions,
            out,
            float(parameters.lower_bound),
            width**-0.5,
            float(parameters.eps),
            UNIT_EPS,
            H=heads,
            D=width,
            COPIES=copies,
            RING=window.shape[1],
            TAPS=parameters.taps.shape[1],
            num_warps=_WARPS,
        )
    return out
