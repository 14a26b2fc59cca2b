"""Bringing bytes of a checkpoint to a device: into CPU tensors directly, to a GPU through pinned memory."""

from typing import Any

import torch

from intarsia.checkpoint import Reader, TensorEntry

PINNED_BYTES = 16 << 20


class Staging:
    """Fills tensors on one device from a reader.

    For a GPU there are two pinned buffers: one is read into while the other is on its way. Both are this
    object's own and nobody else's; a tensor that was filled shares no memory with them.
    """

    def __init__(self, reader: Reader, device: torch.device) -> None:
        self.reader = reader
        self.device = device
        self._buffers: list[torch.Tensor] = []
        self._free: list[Any] = []
        self._turn = 0
        if device.type == "cuda":
            self._buffers = [torch.empty(PINNED_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
            self._free = [torch.cuda.Event() for _ in range(2)]  # type: ignore[no-untyped-call]

    def fill(self, entry: TensorEntry, target: torch.Tensor, begin: int = 0) -> None:
        """Bytes of an entry from `begin` on, as many as the contiguous `target` has."""
        if not self._buffers:
            self.reader.read_into(entry, target, begin, begin + target.nbytes)
            return
        flat = target.reshape(-1).view(torch.uint8)
        for start in range(0, flat.numel(), PINNED_BYTES):
            part = flat[start : start + PINNED_BYTES]
            self._turn ^= 1
            self._free[self._turn].synchronize()
            pinned = self._buffers[self._turn][: part.numel()]
            self.reader.read_into(entry, pinned, begin + start, begin + start + part.numel())
            part.copy_(pinned, non_blocking=True)
            self._free[self._turn].record()

    def rows(self, entry: TensorEntry, first: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Rows of an entry's first dimension, in memory of their own on the device."""
        part = torch.empty((count, *entry.shape[1:]), dtype=dtype, device=self.device)
        self.fill(entry, part, first * (entry.nbytes // entry.shape[0]))
        return part
