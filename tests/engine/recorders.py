"""A way of "capturing" steps that works on a CPU, and is as harsh as a GPU with those who keep outputs."""

from dataclasses import fields, is_dataclass

import torch
from torch import Tensor


class OverwritingRecorder:
    """Runs a step again for every replay, into the first time's outputs; others of its kind spoil them.

    As captured graphs that share memory do: whatever is still read after the next replay shows.
    """

    may_look = True
    buckets = (16, 32, 48, 64)

    def __init__(self) -> None:
        self.replays = 0
        self._outputs: dict[type, list[list[Tensor]]] = {}

    def __call__(self, run):
        outputs = run()
        own = _tensors(outputs)
        kind = self._outputs.setdefault(type(outputs), [])
        kind.append(own)

        def replay():
            self.replays += 1
            for tensors in kind:
                for tensor in tensors:
                    tensor.fill_(torch.nan if tensor.dtype.is_floating_point else 7)
            for target, made in zip(own, _tensors(run()), strict=True):
                target.copy_(made)
            return outputs

        return replay


def _tensors(outputs) -> list[Tensor]:
    if is_dataclass(outputs):
        return [getattr(outputs, field.name) for field in fields(outputs)]
    return [outputs]
