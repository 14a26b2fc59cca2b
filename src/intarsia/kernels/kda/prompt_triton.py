"""Launches of the prompt form whose kernels are written in Triton, for heads of 64 columns and of 128."""

import torch
from torch import Tensor

from intarsia.kernels.device import interpreting
from intarsia.kernels.kda.arguments import Cache, Parameters, Projected
from intarsia.kernels.kda.chunk import CHUNK
from intarsia.kernels.kda.gates import UNIT_EPS
from intarsia.kernels.kda.group import Group
from intarsia.kernels.rows import Rows

_BLOCKS = 4
_CHUNK_WARPS, _CARRY_WARPS, _READ_WARPS = 8, 4, 4
_VALUES, _CARRY_STAGES = 64, 2
_DEPTH, _READ_STAGES = 32, 3
CHUNKS_AT_ONCE = 36
"""Chunks that share room to work in: 0.26 MB a chunk and head of 128 columns. One launch of 2048 rows."""


class Room:
    """What the kernels hand to each other, for `chunks` chunks of every head."""

    def __init__(self, chunks: int, heads: int, width: int, device: torch.device) -> None:
        self.chunks, self.heads, self.width = chunks, heads, width
        part = torch.float32 if interpreting() else torch.bfloat16

        def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(chunks, self.heads, *shape, dtype=dtype, device=device)

        def parts(*shape: int) -> tuple[Tensor, Tensor]:
            return numbers(*shape, dtype=part), numbers(*shape, dtype=part)

        self.lower, self.ends = numbers(CHUNK, CHUNK), numbers(2 * _BLOCKS, width)
        self.u, self.keep = numbers(CHUNK, width), numbers(width)
        self.w, self.query, self.change = parts(CHUNK, width), parts(CHUNK, width), parts(CHUNK, width)
        self.rest, self.q_k, self.state = parts(CHUNK, width), parts(CHUNK, CHUNK), parts(width, width)

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        single = (self.lower, self.ends, self.u, self.keep)
        pairs = (self.w, self.query, self.change, self.rest, self.q_k, self.state)
        return sum(x.nbytes for x in single) + sum(x.nbytes for pair in pairs for x in pair)


def launch_group(
    projected: Projected,
    parameters: Parameters,
    cache: Cache,
    rows: Rows,
    out: Tensor,
    room: Room,
    some: Group,
) -> None:
    """One group of chunks, in four launches."""
    _launch_terms(projected, parameters, cache, rows, room, some)
    _launch_states(projected, cache, rows, room, some)
    _launch_reads(projected, parameters, rows, out, room, some)


def _launch_terms(
    projected: Projected, parameters: Parameters, cache: Cache, rows: Rows, room: Room, some: Group
) -> None:
    """Where chunks lie, and what each contributes whatever the state before it."""
    from intarsia.kernels.kda import triton_chunk

    raw = (projected.raw, projected.raw.stride(0))
    beta = (projected.beta, projected.beta.stride(0))
    taps = parameters.taps.contiguous()
    where = (cache.window, rows.streams, some.table)
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
    triton_chunk.decayed_products[grid](*products, **shape, D=room.width, num_warps=_CHUNK_WARPS)
    triton_chunk.solve_chunk[grid](*solve, **shape, D=room.width, num_warps=_CHUNK_WARPS)


def _launch_states(projected: Projected, cache: Cache, rows: Rows, room: Room, some: Group) -> None:
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
    projected: Projected, parameters: Parameters, rows: Rows, out: Tensor, room: Room, some: Group
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
        some.table,
        out.shape[0],
        float(parameters.eps),
        H=room.heads,
        D=room.width,
        DEPTH=_DEPTH,
        STAGES=_READ_STAGES,
        num_warps=_READ_WARPS,
    )
