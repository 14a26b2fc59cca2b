"""Launches of the prompt form, and when its kernels can run."""

from dataclasses import dataclass

import torch
from torch import Tensor

from intarsia.kernels.choice import GLUON, Case, offer
from intarsia.kernels.device import interpreting, on_device_of
from intarsia.kernels.kda.arguments import Cache, Parameters, Projected
from intarsia.kernels.kda.chunk import CHUNK
from intarsia.kernels.kda.gates import UNIT_EPS
from intarsia.kernels.rows import Rows

_BLOCKS, _TAPS, _GLUON_WIDTH = 4, 4, 128
CHUNKS_AT_ONCE = 36
"""Chunks that share room to work in: 0.26 MB a chunk and head of 128 columns. One launch of 2048 rows."""
_CHUNK_WARPS, _CARRY_WARPS, _READ_WARPS = 8, 4, 4
_PRODUCT_OPTIONS = {"maxnreg": 128}  # two programs a multiprocessor
_SOLVE_OPTIONS = {"maxnreg": 128}
_ENTRY = 8
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
    return rows // CHUNK + 2 * segments + 1


def launch(
    name: str, projected: Projected, parameters: Parameters, cache: Cache, rows: Rows, out: Tensor
) -> None:
    """The prompt segments of a step into `out` [R, H D]; padding rows become zero, others are left alone."""
    segments = rows.starts.shape[0] - 1 - rows.recurrent_segments
    bound = chunk_bound(out.shape[0], segments)
    with on_device_of(out):
        room = _Room(min(bound, CHUNKS_AT_ONCE), cache, out.device)
        for first in range(0, bound, CHUNKS_AT_ONCE):
            some = _Some(segments, first, min(CHUNKS_AT_ONCE, bound - first))
            _launch_terms(name, projected, parameters, cache, rows, room, some)
            _launch_states(projected, cache, rows, room, some)
            _launch_reads(projected, parameters, rows, out, room, some)


@dataclass(frozen=True, slots=True)
class _Some:
    """Prompt segments, and which of their chunks run at once."""

    segments: int
    first: int
    count: int

    @property
    def places(self) -> int:
        """Room for the segments in a kernel: a power of two."""
        return 1 << (self.segments - 1).bit_length()


class _Room:
    """What the kernels hand to each other, for `chunks` chunks of every head."""

    def __init__(self, chunks: int, cache: Cache, device: torch.device) -> None:
        self.heads, self.width = cache.memory.shape[-3], cache.memory.shape[-1]
        width = self.width
        part = torch.float32 if interpreting() else torch.bfloat16

        def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(chunks, self.heads, *shape, dtype=dtype, device=device)

        def parts(*shape: int) -> tuple[Tensor, Tensor]:
            return numbers(*shape, dtype=part), numbers(*shape, dtype=part)

        self.lower, self.ends = numbers(CHUNK, CHUNK), numbers(2 * _BLOCKS, width)
        self.u, self.keep = numbers(CHUNK, width), numbers(width)
        self.w, self.query, self.change = parts(CHUNK, width), parts(CHUNK, width), parts(CHUNK, width)
        self.rest, self.q_k, self.state = parts(CHUNK, width), parts(CHUNK, CHUNK), parts(width, width)
        self.table = torch.empty(chunks, _ENTRY, dtype=torch.int32, device=device)


def _launch_terms(
    name: str,
    projected: Projected,
    parameters: Parameters,
    cache: Cache,
    rows: Rows,
    room: _Room,
    some: _Some,
) -> None:
    """Where chunks lie, and what each contributes whatever the state before it."""
    from intarsia.kernels.kda import triton_chunk, triton_parts

    triton_parts.plan_chunks[(some.count,)](
        rows.starts,
        rows.positions,
        room.table,
        rows.recurrent_segments,
        some.segments,
        some.first,
        SEGMENTS=some.places,
        ENTRY=_ENTRY,
        num_warps=1,
    )
    raw = (projected.raw, projected.raw.stride(0))
    beta = (projected.beta, projected.beta.stride(0))
    taps = parameters.taps.contiguous()
    where = (cache.window, rows.streams, room.table)
    products = (
        *raw,
        projected.decay,
        projected.decay.stride(0),
        *beta,
        taps,
        parameters.a_log,
        parameters.dt_bias,
        *where,
        room.lower,
        room.ends,
        *room.w,
        *room.query,
        *room.q_k,
        *room.rest,
        room.keep,
        *room.change,
        float(parameters.lower_bound),
        room.width**-0.5,
        UNIT_EPS,
    )
    solve = (*raw, *beta, taps, *where, room.lower, room.ends, room.u, *room.w)
    grid, shape = (room.heads, some.count), {"H": room.heads, "RING": cache.window.shape[1]}
    if name == GLUON:
        from intarsia.kernels.kda import gluon_chunk, gluon_solve

        gluon_chunk.decayed_products[grid](*products, **shape, num_warps=_CHUNK_WARPS, **_PRODUCT_OPTIONS)
        gluon_solve.solve_chunk[grid](*solve, **shape, num_warps=_CHUNK_WARPS, **_SOLVE_OPTIONS)
    else:
        triton_chunk.decayed_products[grid](*products, **shape, D=room.width, num_warps=_CHUNK_WARPS)
        triton_chunk.solve_chunk[grid](*solve, **shape, D=room.width, num_warps=_CHUNK_WARPS)


def _launch_states(projected: Projected, cache: Cache, rows: Rows, room: _Room, some: _Some) -> None:
    """The states before the chunks and after the last, and the rings of raw columns."""
    from intarsia.kernels.kda import triton_carry

    values, ring = min(_VALUES, room.width), cache.window.shape[1]
    triton_carry.carry_state[(room.heads * room.width // values, some.segments)](
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
        rows.starts,
        rows.streams,
        rows.positions,
        rows.recurrent_segments,
        some.segments,
        some.first,
        some.count,
        H=room.heads,
        D=room.width,
        VALUES=values,
        COPIES=cache.memory.shape[1],
        RING=ring,
        SLOTS=1 << (ring - 1).bit_length(),
        SEGMENTS=some.places,
        STAGES=0 if interpreting() else _CARRY_STAGES,  # the interpreter has no loop up to a tensor
        num_warps=_CARRY_WARPS,
    )


def _launch_reads(
    projected: Projected, parameters: Parameters, rows: Rows, out: Tensor, room: _Room, some: _Some
) -> None:
    """What the rows read, normed and gated."""
    from intarsia.kernels.kda import triton_carry

    triton_carry.read_chunks[(room.heads, some.count)](
        *room.query,
        *room.q_k,
        *room.state,
        *room.change,
        projected.gate,
        projected.gate.stride(0),
        parameters.norm,
        out,
        rows.starts,
        rows.starts.shape[0] - 1,
        room.table,
        out.shape[0],
        float(parameters.eps),
        H=room.heads,
        D=room.width,
        DEPTH=_DEPTH,
        STAGES=_READ_STAGES,
        num_warps=_READ_WARPS,
    )
