"""Writing encoded rows to a shard as they come; scales that are to be compressed are collected first."""

from math import prod

import torch

from intarsia.checkpoint.streamed import StreamedShard, tensor_bytes
from intarsia.formats import TensorSpec, csf
from intarsia.selection.resolve import Target


class ShardSink:
    """The sink of one whole matrix. Only scales for a codec are held, a byte for sixteen elements."""

    window = None

    def __init__(self, shard: StreamedShard, target: Target, layout: dict[str, TensorSpec]) -> None:
        self._shard = shard
        self._target = target
        self._layout = layout
        self._scales: list[torch.Tensor] = []
        self._collected = 0

    def put(self, suffix: str, row: int, part: torch.Tensor) -> None:
        """Writes the part, or keeps it until all scales are there."""
        spec = self._layout[suffix]
        if suffix == "weight_scale" and self._target.codec is not None:
            self._collect(part, spec.shape[0])
            return
        per_row = spec.nbytes // spec.shape[0] if spec.shape else 0
        self._shard.write(f"{self._target.module}.{suffix}", row * per_row, tensor_bytes(part))

    def _collect(self, part: torch.Tensor, rows: int) -> None:
        self._scales.append(part.to("cpu").view(torch.uint8))
        self._collected += part.shape[0]
        if self._collected < rows:
            return
        codec = self._target.codec or ""
        scales = torch.cat(self._scales)
        self._scales.clear()
        for name, tensor in csf.encode(scales, codec).items():
            full = f"{self._target.module}.weight_scale.{name}"
            if self._shard.is_variable(full):
                self._shard.append(full, tensor_bytes(tensor))
            else:
                self._shard.write(full, 0, tensor_bytes(tensor.reshape(prod(tensor.shape))))
