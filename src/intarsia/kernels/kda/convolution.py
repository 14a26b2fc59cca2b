"""Depthwise causal convolution of a few taps over each stream, then SiLU.

The window of a stream is a ring of raw columns (see `intarsia.kernels.ring`).
"""

import torch
from torch import Tensor

from intarsia.kernels.elementwise import silu
from intarsia.kernels.ring import earlier, remember
from intarsia.kernels.rows import Rows


def convolve(raw: Tensor, taps: Tensor, window: Tensor, rows: Rows) -> Tensor:
    """Convolved and activated columns, float32 [R, C], of `raw` [R, C]; the last tap multiplies the row
    itself.

    taps [C, T]; window [streams, ring, C] is read for the T - 1 positions before each segment and receives
    the segment's own last `ring` columns. Positions before the sequence count as zero.
    """
    taps = taps.float()
    out = torch.zeros(raw.shape, dtype=torch.float32, device=raw.device)
    for segment in rows.segments():
        columns = torch.cat(
            [earlier(window[segment.stream], segment, taps.shape[1] - 1), raw[segment.rows].float()]
        )
        total = columns[: segment.count] * taps[:, 0]
        for tap in range(1, taps.shape[1]):
            total = total + columns[tap : tap + segment.count] * taps[:, tap]
        out[segment.rows] = silu(total)
        remember(window[segment.stream], raw[segment.rows], segment)
    return out
