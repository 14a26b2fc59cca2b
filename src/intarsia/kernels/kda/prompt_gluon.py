"""Launches of the prompt form for heads of 128 columns, whose kernels are written in Gluon."""

from typing import Any

import torch
from torch import Tensor

from intarsia.kernels.kda.arguments import Cache, Parameters, Projected
from intarsia.kernels.kda.chunk import CHUNK
from intarsia.kernels.kda.gates import UNIT_EPS
from intarsia.kernels.kda.group import Group
from intarsia.kernels.rows import Rows

_TERM_WARPS, _CARRY_WARPS, _NORM_WARPS = 8, 4, 4
_TERM_OPTIONS: dict[str, int] = {"maxnreg": 128}  # two programs a multiprocessor
_NORM_PARTS = 2
_VALUES = 64  # columns of the state that a program carries
CHUNKS_AT_ONCE = 66
"""Chunks that share room to work in, 0.2 MB a chunk and head: two launches of 8192 rows."""


class Room:
    """What the kernels hand to each other, for `chunks` chunks of every head."""

    def __init__(self, chunks: int, heads: int, width: int, device: torch.device) -> None:
        self.chunks, self.heads, self.width = chunks, heads, width

        def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(chunks, heads, *shape, dtype=dtype, device=device)

        self.keys = numbers(4, width, CHUNK, dtype=torch.bfloat16)
        self.rest = numbers(2, CHUNK, width, dtype=torch.bfloat16)
        self.values = numbers(2, width, CHUNK)
        self.read, self.keep = numbers(CHUNK, width), numbers(width)

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return sum(x.nbytes for x in (self.keys, self.rest, self.values, self.read, self.keep))

    def boxes(self) -> tuple[Any, Any, Any]:
        """Descriptors of what passes in tiles: keys [256, 64] and rest [128, 128], both parts, and values
        [128, 64].
        """
        from triton.experimental.gluon.language import NVMMASharedLayout
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

        narrow, wide = NVMMASharedLayout(128, 16, 2), NVMMASharedLayout(128, 32, 2)
        keys, rest, values = (
            self.keys.view(-1, CHUNK),
            self.rest.view(-1, self.width),
            self.values.view(-1, CHUNK),
        )
        return (
            TensorDescriptor.from_tensor(keys, [2 * self.width, CHUNK], narrow),
            TensorDescriptor.from_tensor(rest, [2 * CHUNK, self.width], narrow),
            TensorDescriptor.from_tensor(values, [self.width, CHUNK], wide),
        )


def launch_group(
    projected: Projected,
    parameters: Parameters,
    cache: Cache,
    rows: Rows,
    out: Tensor,
    room: Room,
    some: Group,
) -> None:
    """One group of chunks, in three launches."""
    from intarsia.kernels.kda import gluon_carry, gluon_terms, triton_norm

    heads, ring = room.heads, cache.window.shape[1]
    keys, rest, solved = room.boxes()
    gluon_terms.chunk_terms[(heads, some.count)](
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
        rows.streams,
        some.table,
        keys,
        solved,
        room.rest,
        room.keep,
        float(parameters.lower_bound),
        UNIT_EPS,
        H=heads,
        RING=ring,
        num_warps=_TERM_WARPS,
        **_TERM_OPTIONS,
    )
    gluon_carry.carry_state[(heads * room.width // _VALUES, some.segments)](
        keys,
        rest,
        room.values,
        room.keep,
        room.read,
        projected.raw,
        projected.raw.stride(0),
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
        H=heads,
        COPIES=cache.memory.shape[1],
        RING=ring,
        SLOTS=1 << (ring - 1).bit_length(),
        SEGMENTS=some.places,
        num_warps=_CARRY_WARPS,
    )
    triton_norm.norm_chunks[(heads, _NORM_PARTS * some.count)](
        room.read,
        projected.gate,
        projected.gate.stride(0),
        parameters.norm,
        out,
        rows.starts,
        rows.starts.shape[0] - 1,
        some.table,
        out.shape[0],
        room.width**-0.5,
        float(parameters.eps),
        H=heads,
        D=room.width,
        PARTS=_NORM_PARTS,
        num_warps=_NORM_WARPS,
    )
