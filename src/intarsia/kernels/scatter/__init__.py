"""Carrying bytes of one buffer on a device to many places on it, in one launch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from intarsia.kernels.choice import TRITON, Case, choose, offer
from intarsia.kernels.device import on_device_of

__all__ = ["Part", "scatter", "scatters"]

_CHUNK, _WARPS = 1 << 13, 8  # bytes of a program

Part = tuple[int, int, int]
"""Where the bytes begin in the buffer, the address they go to, and how many they are."""

offer("scatter", lambda case: "")


def scatters(device: torch.device) -> bool:
    """Whether `scatter` runs on a device; elsewhere bytes are copied one tensor at a time."""
    return choose(Case("scatter", (), torch.uint8, device)) == TRITON


def scatter(buffer: Tensor, parts: Sequence[Part]) -> None:
    """Copies parts of `buffer` (flat uint8) to addresses on its device, whose memory the caller keeps."""
    from intarsia.kernels.scatter import triton_scatter as kernels

    if not parts:
        return
    table = torch.tensor(parts, dtype=torch.int64).to(buffer.device, non_blocking=True)
    longest = max(count for _, _, count in parts)
    with on_device_of(buffer):
        kernels.scatter_bytes[(len(parts), -(-longest // _CHUNK))](
            buffer, table, CHUNK=_CHUNK, num_warps=_WARPS
        )
