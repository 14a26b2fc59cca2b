"""Launches of the prompt form for heads of 128 columns, whose kernels are written in Gluon."""

from typing import Any

import torch
from torch import Tensor

from intarsia.kernels.device import interpreting
from intarsia.kernels.kda.arguments import Cache, Parameters, Projected
from intarsia.kernels.kda.chunk import CHUNK
from intarsia.kernels.kda.gates import UNIT_EPS
from intarsia.kernels.kda.group import Group
from intarsia.kernels.rows import Rows

_TERM_WARPS, _NORM_WARPS = 8, 4
_TERM_OPTIONS: dict[str, int] = {"maxnreg": 128}  # two programs a multiprocessor
_NORM_PARTS = 2
CHUNKS_AT_ONCE, CHUNKS_IN_TURN = 36, 12
"""Chunks that share room to work in, 0.2 MB a chunk and head: in one room, or in one of two in turn."""
OVERLAP = True
"""While the state of a group is carried, by one program a head, form the next group's terms beside it."""
MANY_HEADS = 48
"""From so many heads on a program carries a whole head's state: what halves would share is read once, and
what rows read is normed and gated where it is formed.
"""


class Room:
    """What the kernels hand to each other, for `chunks` chunks of every head."""

    def __init__(self, chunks: int, heads: int, width: int, device: torch.device) -> None:
        self.chunks, self.heads, self.width = chunks, heads, width

        def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.empty(chunks, heads, *shape, dtype=dtype, device=device)

        self.keys = numbers(4, width, CHUNK, dtype=torch.bfloat16)
        self.rest = numbers(2, CHUNK, width, dtype=torch.bfloat16)
        self.values = numbers(2, width, CHUNK)
        self.whole = heads >= MANY_HEADS
        self.read = numbers(0) if self.whole else numbers(CHUNK, width)
        self.keep = numbers(width)

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


def rooms(bound: int, heads: int, width: int, device: torch.device) -> list[Room]:
    """For up to `bound` chunks: one room, or two in turn."""
    if heads < MANY_HEADS or bound <= CHUNKS_IN_TURN:
        return [Room(min(bound, CHUNKS_AT_ONCE), heads, width, device)]
    return [Room(CHUNKS_IN_TURN, heads, width, device) for _ in range(2)]


def launch_group(
    projected: Projected,
    parameters: Parameters,
    cache: Cache,
    rows: Rows,
    out: Tensor,
    room: Room,
    some: Group,
) -> None:
    """One group of chunks, in three launches, or four for a few heads."""
    from intarsia.kernels.kda import gluon_carry, gluon_terms, triton_norm

    heads, ring = room.heads, cache.window.shape[1]
    values = room.width if room.whole else room.width // 2
    overlap = OVERLAP and room.whole and not interpreting()
    beside, early = overlap and some.first > 0, overlap and not some.last
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
        BESIDE=beside,
        num_warps=_TERM_WARPS,
        **_TERM_OPTIONS,
        **({"launch_pdl": True} if beside else {}),
    )
    gluon_carry.carry_state[(heads * room.width // values, some.segments)](
        keys,
        rest,
        room.values,
        room.keep,
        room.read,
        projected.gate,
        projected.gate.stride(0),
        parameters.norm,
        out,
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
        out.shape[0],
        room.width**-0.5,
        float(parameters.eps),
        H=heads,
        COPIES=cache.memory.shape[1],
        RING=ring,
        SLOTS=1 << (ring - 1).bit_length(),
        SEGMENTS=some.places,
        VALUES=values,
        EARLY=early,
        num_warps=values // 16,
    )
    if room.whole:
        return
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
