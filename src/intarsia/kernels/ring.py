"""The last raw entries of a stream, kept by position modulo the ring's length.

Rolling a stream back is nothing but a smaller length, as long as the ring is long enough for what a row looks
back to plus the rows of one step that may be taken back.
"""

import torch
from torch import Tensor

from intarsia.kernels.rows import Segment


def earlier(ring: Tensor, segment: Segment, count: int) -> Tensor:
    """The `count` entries before a segment, oldest first, float32; zeros before the sequence began."""
    positions = torch.arange(segment.position - count, segment.position, device=ring.device)
    entries = ring[positions % ring.shape[0]].float()
    return torch.where((positions >= 0).view(-1, *[1] * (entries.dim() - 1)), entries, 0.0)


def remember(ring: Tensor, values: Tensor, segment: Segment) -> None:
    """Store a segment's last entries at their positions modulo the ring's length."""
    kept = min(segment.count, ring.shape[0])
    positions = torch.arange(segment.end - kept, segment.end, device=ring.device)
    ring[positions % ring.shape[0]] = values[segment.count - kept :].to(ring.dtype)
