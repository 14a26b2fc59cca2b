"""KDA between its projections, for all rows of a step: the operations of this folder in their order."""

from dataclasses import replace

import torch
from torch import Tensor

from intarsia.kernels.choice import REFERENCE, Case, choose
from intarsia.kernels.elementwise import sigmoid
from intarsia.kernels.kda import prompt, recurrent
from intarsia.kernels.kda.arguments import Cache, Parameters, Projected
from intarsia.kernels.kda.convolution import convolve
from intarsia.kernels.kda.gates import log_decay, unit_heads
from intarsia.kernels.kda.output import gated_norm
from intarsia.kernels.kda.scan import scan
from intarsia.kernels.rows import Rows


def attention_step(
    projected: Projected, parameters: Parameters, cache: Cache, rows: Rows, *, overlap: bool = False
) -> Tensor:
    """What goes into the output projection, [R, H D] in the dtype of `raw`; the cache is advanced.

    Memory, window and current copies are as in `scan` and `convolve`. On a GPU recurrent segments run in one
    kernel and those in the prompt form in four. A form's bits do not depend on what else is in the step.
    `overlap`: the launch before this one, whatever it was, did not write the cache.
    """
    heads, width = cache.memory.shape[-3], cache.memory.shape[-1]
    raw = projected.raw
    shape = (heads, width, parameters.taps.shape[1])
    of_rows = choose(Case("kda_step", (), raw.dtype, raw.device, shape))
    of_prompts = choose(Case("kda_prompt", (), raw.dtype, raw.device, shape))
    segments = rows.starts.shape[0] - 1
    if of_rows == REFERENCE:
        return reference_step(projected, parameters, cache, rows)
    out = torch.empty(raw.shape[0], heads * width, dtype=raw.dtype, device=raw.device)
    has_rows, has_prompts = rows.recurrent_segments > 0, rows.recurrent_segments < segments
    if has_rows or not has_prompts:
        recurrent.launch(of_rows, projected, parameters, cache, rows, out, overlap=overlap)
    if not has_prompts:
        return out
    if of_prompts != REFERENCE:
        prompt.launch(of_prompts, projected, parameters, cache, rows, out)
        return out
    begins = rows.starts[rows.recurrent_segments]
    prompts = replace(rows, starts=rows.starts[rows.recurrent_segments :], recurrent_segments=0)
    rest = reference_step(projected, parameters, cache, prompts)
    is_prompt = torch.arange(raw.shape[0], device=raw.device) >= begins
    return torch.where(is_prompt.unsqueeze(1), rest, out) if has_rows else rest


def reference_step(projected: Projected, parameters: Parameters, cache: Cache, rows: Rows) -> Tensor:
    """The specification: the operations one after the other."""
    heads, width = cache.memory.shape[-3], cache.memory.shape[-1]
    q, k, v = convolve(projected.raw, parameters.taps, cache.window, rows).chunk(3, -1)
    read = scan(
        unit_heads(q, heads) * width**-0.5,
        unit_heads(k, heads),
        v.reshape(-1, heads, width),
        log_decay(projected.decay, parameters.a_log, parameters.dt_bias, parameters.lower_bound),
        sigmoid(projected.beta.float()),
        cache.memory,
        cache.current,
        rows,
    )
    return gated_norm(read, projected.gate, parameters.norm, parameters.eps, projected.raw.dtype)
