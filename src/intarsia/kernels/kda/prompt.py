"""Launches of the prompt form, and when its kernels can run."""

import torch
from torch import Tensor

from intarsia.kernels.choice import Case, offer
from intarsia.kernels.device import interpreting, on_device_of
from intarsia.kernels.kda.arguments import Cache, Parameters, Projected
from intarsia.kernels.kda.chunk import CHUNK
from intarsia.kernels.kda.gates import UNIT_EPS
from intarsia.kernels.rows import Rows

_BLOCKS, _TAPS = 4, 4
CHUNKS_AT_ONCE = 36
"""Chunks that share room to work in: 0.26 MB a chunk and head of 128 columns. One launch of 2048 rows."""
_TERM_WARPS, _CARRY_WARPS, _READ_WARPS = 8, 4, 4
_VALUES, _CARRY_STAGES = 64, 2
_DEPTH, _READ_STAGES = 32, 3


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


offer("kda_prompt", refuse)


def chunk_bound(rows: int, segments: int) -> int:
    """As many programs as there can be chunks, and enough after them to clear the padding rows."""
    return rows // CHUNK + 2 * segments + 1


def launch(projected: Projected, parameters: Parameters, cache: Cache, rows: Rows, out: Tensor) -> None:
    """The prompt segments of a step into `out` [R, H D]; padding rows become zero, others are left alone."""
    segments = rows.starts.shape[0] - 1 - rows.recurrent_segments
    bound = chunk_bound(out.shape[0], segments)
    room = _Room(min(bound, CHUNKS_AT_ONCE), cache, out.device)
    with on_device_of(out):
        for first in range(0, bound, CHUNKS_AT_ONCE):
            count = min(CHUNKS_AT_ONCE, bound - first)
            _launch(projected, parameters, cache, rows, out, room, (segments, first, count))


class _Room:
    """What the kernels hand to each other, for `chunks` chunks of every head."""

    def __init__(self, chunks: int, cache: Cache, device: torch.device) -> None:
        heads, width = cache.memory.shape[-3], cache.memory.shape[-1]
        part = torch.float32 if interpreting() else torch.bfloat16

        def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(chunks, heads, *shape, dtype=dtype, device=device)

        def parts(*shape: int) -> tuple[Tensor, Tensor]:
            return numbers(*shape, dtype=part), numbers(*shape, dtype=part)

        self.lower, self.ends = numbers(CHUNK, CHUNK), numbers(2 * _BLOCKS, width)
        self.u, self.keep = numbers(CHUNK, width), numbers(width)
        self.w, self.query, self.change = parts(CHUNK, width), parts(CHUNK, width), parts(CHUNK, width)
        self.q_k, self.rest, self.state = parts(CHUNK, CHUNK), parts(width, CHUNK), parts(width, width)


def _launch(
    projected: Projected,
    parameters: Parameters,
    cache: Cache,
    rows: Rows,
    out: Tensor,
    room: _Room,
    which: tuple[int, int, int],
) -> None:
    """The three kernels over the chunks that `which` names: prompt segments, first chunk, chunks."""
    from intarsia.kernels.kda import triton_carry, triton_chunk

    segments, first, count = which
    heads, width = cache.memory.shape[-3], cache.memory.shape[-1]
    ring = cache.window.shape[1]
    several = 1 << (segments - 1).bit_length()
    values = min(_VALUES, width)
    place = (rows.starts, rows.streams, rows.positions)
    chunks = (rows.recurrent_segments, segments, first)
    triton_chunk.chunk_terms[(heads, count)](
        projected.raw,
        projected.raw.stride(0),
        projected.decay,
        projected.decay.stride(0),
        projected.beta,
        projected.beta.stride(0),
        parameters.taps.contiguous(),
        parameters.a_log,
        parameters.dt_bias,
        cache.window,
        *place,
        room.lower,
        room.ends,
        room.u,
        *room.w,
        *room.query,
        *room.q_k,
        *room.rest,
        room.keep,
        *room.change,
        *chunks,
        float(parameters.lower_bound),
        width**-0.5,
        UNIT_EPS,
        H=heads,
        D=width,
        RING=ring,
        SEGMENTS=several,
        num_warps=_TERM_WARPS,
    )
    triton_carry.carry_state[(heads * width // values, segments)](
        projected.raw,
        projected.raw.stride(0),
        room.u,
        *room.w,
        *room.rest,
        room.keep,
        *room.state,
        *room.change,
        cache.memory,
        cache.window,
        cache.current,
        *place,
        *chunks,
        count,
        H=heads,
        D=width,
        VALUES=values,
        COPIES=cache.memory.shape[1],
        RING=ring,
        SLOTS=1 << (ring - 1).bit_length(),
        SEGMENTS=several,
        STAGES=0 if interpreting() else _CARRY_STAGES,  # the interpreter has no loop up to a tensor
        num_warps=_CARRY_WARPS,
    )
    triton_carry.read_chunks[(heads, count)](
        *room.query,
        *room.q_k,
        *room.state,
        *room.change,
        projected.gate,
        projected.gate.stride(0),
        parameters.norm,
        out,
        rows.starts,
        rows.positions,
        *chunks,
        out.shape[0],
        float(parameters.eps),
        H=heads,
        D=width,
        DEPTH=_DEPTH,
        SEGMENTS=several,
        STAGES=_READ_STAGES,
        num_warps=_READ_WARPS,
    )
