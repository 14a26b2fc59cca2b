"""Carrying bytes of one buffer to many places on its device, in one launch."""

from ctypes import memmove

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from intarsia.kernels.choice import TRITON, Case, choose, offer
from intarsia.kernels.device import on_device_of

__all__ = ["CHUNK", "Table", "scatter", "scatters", "table"]

CHUNK = 1 << 14
"""Bytes that a program carries."""
_WARPS = 8

Table = NDArray[np.int64]
"""[parts, 3]: where the bytes begin in the buffer, the address they go to, and how many they are."""

offer("scatter", lambda case: "")


def scatters(device: torch.device) -> bool:
    """Whether a kernel carries the bytes on a device."""
    return choose(Case("scatter", (), torch.uint8, device)) == TRITON


def table(place: Table, address: Table, count: Table) -> tuple[Table, Table]:
    """Parts of any length as rows of at most `CHUNK` bytes, and which part each row is of."""
    rows = -(-count // CHUNK)
    part = np.repeat(np.arange(len(rows)), rows)
    first = (np.arange(len(part)) - (np.cumsum(rows) - rows)[part]) * CHUNK
    columns = (place[part] + first, address[part] + first, np.minimum(count[part] - first, CHUNK))
    return np.stack(columns, axis=1), part


def scatter(buffer: Tensor, rows: Table, room: Tensor | None = None) -> None:
    """Copies parts of `buffer` (flat uint8) to addresses on its device, whose memory the caller keeps.

    `rows` are of at most `CHUNK` bytes, see `table`. On a GPU the buffer has whole words, and `room` is
    pinned memory (int64 [rows, 3] at least), which the kernel reads in place: the caller leaves it alone
    until the device is done.
    """
    if not len(rows):
        return
    if room is None and not scatters(buffer.device):
        source = buffer.data_ptr()
        for place, address, count in rows.tolist():
            memmove(address, source + place, count)
        return
    from intarsia.kernels.scatter import triton_scatter as kernels

    if room is None:
        there = torch.from_numpy(rows).to(buffer.device)
    else:
        there = room[: len(rows)]
        # Not as numpy copies: that lets go of the interpreter, which readers take meanwhile.
        there.numpy().data.cast("B")[:] = rows.data.cast("B")
    with on_device_of(buffer):
        kernels.scatter_bytes[(len(rows),)](buffer, there, CHUNK=CHUNK, num_warps=_WARPS)
