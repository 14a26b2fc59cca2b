"""Launches of the prompt form, and when its kernels can run."""

import torch
from torch import Tensor

from intarsia.kernels.choice import GLUON, Case, offer
from intarsia.kernels.device import on_device_of
from intarsia.kernels.errors import KernelError
from intarsia.kernels.kda import prompt_gluon, prompt_triton
from intarsia.kernels.kda.arguments import Cache, Parameters, Projected
from intarsia.kernels.kda.chunk import CHUNK
from intarsia.kernels.kda.group import groups
from intarsia.kernels.rows import Rows

_TAPS, _GLUON_WIDTH = 4, 128
LEAST_LOG_DECAY = -5.0
"""Of a row: the powers that the kernels form of sums over 16 or 32 rows are float32 numbers down to this."""


def refuse(case: Case) -> str:
    """Why the Triton kernels cannot run a case, or the empty string; shape: heads, width of a head, taps."""
    _, width, taps = case.shape
    if width not in (64, 128):
        return f"heads of {width} columns; 64 or 128 are needed"
    if taps != _TAPS:
        return f"{taps} taps; {_TAPS} are needed"
    if case.dtype != torch.bfloat16:
        return f"rows of {str(case.dtype).removeprefix('torch.')}; bfloat16 is needed"
    return ""


def refuse_gluon(case: Case) -> str:
    """The same where the kernel with the most arithmetic is the Gluon one."""
    _, width, _ = case.shape
    if width != _GLUON_WIDTH:
        return f"heads of {width} columns; {_GLUON_WIDTH} are needed"
    return refuse(case)


offer("kda_prompt", refuse)
offer("kda_prompt", refuse_gluon, GLUON)


def chunk_bound(rows: int, segments: int) -> int:
    """As many programs as there can be chunks, and enough after them to clear the padding rows."""
    return (rows + (2 * CHUNK - 2) * segments) // CHUNK + 1


def working_bytes(heads: int, width: int) -> int:
    """Bytes that the kernels of a long prompt hand to each other."""
    forms = prompt_gluon if width == _GLUON_WIDTH else prompt_triton
    nbytes: int = forms.Room(forms.CHUNKS_AT_ONCE, heads, width, torch.device("meta")).nbytes
    return nbytes


def launch(
    name: str, projected: Projected, parameters: Parameters, cache: Cache, rows: Rows, out: Tensor
) -> None:
    """The prompt segments of a step into `out` [R, H D]; padding rows become zero, others are left alone.

    Raises KernelError where decays may be stronger than the kernels' powers allow.
    """
    if parameters.lower_bound < LEAST_LOG_DECAY:
        raise KernelError(
            "kda_prompt",
            found=f"log decays down to {parameters.lower_bound}",
            expected=f"at least {LEAST_LOG_DECAY}",
            action="use the reference",
        )
    forms = prompt_gluon if name == GLUON else prompt_triton
    segments = rows.starts.shape[0] - 1 - rows.recurrent_segments
    bound = chunk_bound(out.shape[0], segments)
    heads, width = cache.memory.shape[-3], cache.memory.shape[-1]
    with on_device_of(out):
        room = forms.Room(min(bound, forms.CHUNKS_AT_ONCE), heads, width, out.device)
        for some in groups(rows, segments, bound, room.chunks):
            forms.launch_group(projected, parameters, cache, rows, out, room, some)
