"""Encoding weights on a GPU in as few passes as their bytes ask for, with the bytes that `formats` gives."""

import torch
from torch import Tensor

from intarsia import formats
from intarsia.formats.sources import Deferred
from intarsia.formats.stored import Stored
from intarsia.kernels.choice import TRITON, Case, choose
from intarsia.kernels.encode import launch

__all__ = ["encode"]


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
