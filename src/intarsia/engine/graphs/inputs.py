"""Inputs of a captured step: memory that stays where it is, filled in one copy."""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Arrays = Mapping[str, npt.NDArray[Any]]
Field = tuple[torch.dtype, tuple[int, ...]]
_ALIGNMENT = 8
_NUMPY = {torch.int32: np.int32, torch.int64: np.int64, torch.float64: np.float64}


class Inputs:
    """Named tensors that lie in one piece of device memory."""

    def __init__(self, fields: Mapping[str, Field], device: torch.device) -> None:
        """Field name -> dtype and shape; all zero at first."""
        self._fields = dict(fields)
        self._begins: dict[str, int] = {}
        end = 0
        for name, (dtype, shape) in self._fields.items():
            self._begins[name] = end
            end += -(-prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        self._memory = torch.zeros(end, dtype=torch.uint8, device=device)

    def __getitem__(self, name: str) -> Tensor:
        """The tensor on the device, the same memory at every step."""
        dtype, shape = self._fields[name]
        begin = self._begins[name]
        return self._memory[begin : begin + prod(shape) * dtype.itemsize].view(dtype).view(shape)

    def fill(self, write: Callable[[Arrays], None]) -> None:
        """Let `write` fill every field's array on the host, and copy all of them; nobody waits for it.

        The host memory is new each time, since an earlier copy may still be under way. torch keeps pinned
        memory until the copies from it are done.
        """
        host = torch.empty(
            self._memory.shape, dtype=torch.uint8, pin_memory=self._memory.device.type == "cuda"
        )
        flat, arrays = host.numpy(), {}
        for name, (dtype, shape) in self._fields.items():
            begin = self._begins[name]
            part = flat[begin : begin + prod(shape) * dtype.itemsize]
            arrays[name] = part.view(_NUMPY[dtype]).reshape(shape)
        write(arrays)
        self._memory.copy_(host, non_blocking=True)
