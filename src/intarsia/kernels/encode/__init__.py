"""Encoding weights on a GPU in as few passes as their bytes ask for, with the bytes that `formats` gives."""

from collections.abc import Mapping

import torch
from torch import Tensor

from intarsia import formats
from intarsia.formats.sources import Deferred
from intarsia.formats.stored import Stored
from intarsia.kernels.choice import TRITON, Case, choose
from intarsia.kernels.encode import launch
from intarsia.kernels.encode.launch import WITH_GLOBAL

__all__ = ["WITH_GLOBAL", "encode", "encode_into", "encodes_into"]


def encode(name: str, weight: Tensor, *, amax: Tensor | float | None = None) -> Stored:
    """A weight [N, K] or [E, N, K] in a format: the same bytes and errors as `formats.get(name).encode`.

    Under `formats.sources.Deferred` nothing waits for the device, as there.
    """
    case = Case("encode", (name,), weight.dtype, weight.device, tuple(weight.shape))
    if choose(case) == TRITON:
        noted = Deferred.noting()
        fault = torch.zeros((), dtype=torch.bool, device=weight.device) if noted is None else noted
        stored = launch.launch(name, weight, amax, fault)
        if noted is not None or not bool(fault):
            return stored
        # The reference finds the element and says what is wrong with it.
    return formats.get(name).encode(weight, amax=amax)


def encodes_into(name: str, dtype: torch.dtype, device: torch.device, shape: tuple[int, int]) -> bool:
    """Whether a kernel encodes matrices straight to where they stay; if not, `encode` makes tensors."""
    return choose(Case("encode", (name,), dtype, device, (1, *shape))) == TRITON


def encode_into(
    name: str, stack: Tensor, places: Mapping[str, Tensor], fault: Tensor, *, share: int = 1
) -> None:
    """Encodes matrices [n, N, K] to `places`: by suffix the contiguous tensors of a stack, [n, ...].

    `share` matrices that follow each other share a global scale, in a format that has one. The bytes are
    those of `encode`. `fault`, a bool on the device, is set where a value is not finite: what is encoded is
    to be thrown away then. Nothing waits for the device.
    """
    if encodes_into(name, stack.dtype, stack.device, (stack.shape[-2], stack.shape[-1])):
        launch.launch_into(name, stack, places, fault, share)
        return
    kind = formats.get(name)
    with Deferred(fault):
        for first in range(0, len(stack), share):
            some = stack[first : first + share]
            amax = some.abs().amax().float() if name in WITH_GLOBAL else None
            for index, matrix in enumerate(some, first):
                for suffix, tensor in kind.encode(matrix, amax=amax).tensors.items():
                    places[suffix][index].copy_(tensor)
