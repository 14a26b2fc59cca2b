"""Inputs of a captured step: memory that stays where it is, filled by one copy at the step's beginning."""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Arrays = Mapping[str, npt.NDArray[Any]]
Field = tuple[torch.dtype, tuple[int, ...]]
T = TypeVar("T")
_ALIGNMENT = 8
_NUMPY = {torch.int32: np.int32, torch.int64: np.int64, torch.float64: np.float64}


class Inputs:
    """Named tensors that lie in one piece of device memory, and what the next step is to find in them.

    Their copy is a part of the step: what begins a step from the host is one launch.
    """

    def __init__(self, fields: Mapping[str, Field], device: torch.device) -> None:
        """Field name -> dtype and shape; all zero at first."""
        self._fields = dict(fields)
        self._begins: dict[str, int] = {}
        end = 0
        for name, (dtype, shape) in self._fields.items():
            self._begins[name] = end
            end += -(-prod(shape) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        on_gpu = device.type == "cuda"
        self._memory = torch.zeros(end, dtype=torch.uint8, device=device)
        self._host = torch.zeros(end, dtype=torch.uint8, pin_memory=on_gpu)
        self._arrays = self._views(self._host.numpy())
        self._done = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]

    def __getitem__(self, name: str) -> Tensor:
        """The tensor on the device, the same memory at every step."""
        dtype, shape = self._fields[name]
        begin = self._begins[name]
        return self._memory[begin : begin + prod(shape) * dtype.itemsize].view(dtype).view(shape)

    def fill(self, write: Callable[[Arrays], None]) -> None:
        """Let `write` fill every field's array on the host, for the step launched next.

        Waits for the step launched last, if it is not over: it may still have to take what stands there.
        """
        if self._done is not None:
            self._done.synchronize()
        write(self._arrays)

    def take(self) -> None:
        """The first thing that a step does: bring to the device what `fill` wrote."""
        self._memory.copy_(self._host, non_blocking=True)
        if not (self._memory.is_cuda and torch.cuda.is_current_stream_capturing()):
            self._mark()

    def launch(self, step: Callable[[], T]) -> T:
        """Replay a captured step, which takes what `fill` wrote; the next `fill` comes after it."""
        outputs = step()
        self._mark()
        return outputs

    def _mark(self) -> None:
        if self._done is not None:
            self._done.record(torch.cuda.current_stream(self._memory.device))

    def _views(self, flat: npt.NDArray[np.uint8]) -> Arrays:
        arrays = {}
        for name, (dtype, shape) in self._fields.items():
            begin = self._begins[name]
            part = flat[begin : begin + prod(shape) * dtype.itemsize]
            arrays[name] = part.view(_NUMPY[dtype]).reshape(shape)
        return arrays
