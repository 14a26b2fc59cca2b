"""What MXFP8 and MXFP4 share: blocks of 32 columns under one E8M0 exponent."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch

from intarsia.formats.base import Format, TensorSpec, refuse_not_finite, source, true_divide
from intarsia.formats.codes import ceil_log2, decode_e8m0
from intarsia.formats.errors import UnencodableError
from intarsia.formats.layout import (
    as_slice,
    require,
    require_dtype,
    require_matrix,
    require_shape,
    whole_groups,
)
from intarsia.formats.stored import Stored

GROUP = 32


class Mx(Format):
    """A block of 32 elements times 2^(weight_scale - 127); `weight_scale` is a byte (U8 or F8_E8M0 on disk)."""

    block = (1, GROUP)
    element: ClassVar[torch.dtype]
    per_byte: ClassVar[int]
    largest: ClassVar[float]
    scale_names: ClassVar[tuple[str, ...]] = ("weight_scale",)

    @abstractmethod
    def _encode_elements(self, blocks: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
        """Stored elements [..., columns] of float32 blocks [..., groups, 32] under E8M0 bytes [..., groups]."""

    @abstractmethod
    def _decode_elements(self, weight: torch.Tensor) -> torch.Tensor:
        """Float32 values [..., columns] of stored elements, before scaling."""

    def layout(self, shape: tuple[int, ...]) -> dict[str, TensorSpec]:
        *lead, rows, columns = shape
        if columns % GROUP:
            raise UnencodableError(self.name, found=f"{columns} columns", expected=f"a multiple of {GROUP}")
        return {
            "weight": TensorSpec(self.element, (*lead, rows, columns // self.per_byte)),
            "weight_scale": TensorSpec(torch.uint8, (*lead, rows, columns // GROUP)),
        }

    def encode(self, weight: torch.Tensor, *, amax: torch.Tensor | float | None = None) -> Stored:
        whole = source(weight, self.name)
        self.layout(tuple(whole.shape))
        blocks = whole.float().unflatten(-1, (-1, GROUP))
        block_max = blocks.abs().amax(dim=-1)
        if not bool(torch.isfinite(block_max).all()):
            refuse_not_finite(whole, self.name)
        exponent = (ceil_log2(true_divide(block_max, self.largest)) + 127).to(torch.uint8)
        tensors = {"weight": self._encode_elements(blocks, exponent), "weight_scale": exponent}
        return Stored(self.name, tensors, tuple(whole.shape))

    def scale_name(self, tensors: Mapping[str, torch.Tensor]) -> str:
        """The name under which the scale is stored."""
        return next((name for name in self.scale_names if name in tensors), self.scale_names[0])

    def stored(self, tensors: Mapping[str, torch.Tensor], *, origin: tuple[int, int] = (0, 0)) -> Stored:
        scale_name = self.scale_name(tensors)
        require(self.name, tensors, ["weight", scale_name])
        weight, scale = tensors["weight"], tensors[scale_name]
        require_dtype(f"{self.name} weight", weight, self.element)
        require_matrix(f"{self.name} weight", weight)
        require_dtype(f"{self.name} {scale_name}", scale, torch.uint8, torch.float8_e8m0fnu)
        *lead, rows, packed = weight.shape
        columns = packed * self.per_byte
        require_shape(f"{self.name} {scale_name}", scale, (*lead, rows, columns // GROUP))
        require_shape(f"{self.name} weight", weight, (*lead, rows, scale.shape[-1] * GROUP // self.per_byte))
        return Stored(
            self.name, {"weight": weight, scale_name: scale.view(torch.uint8)}, (*lead, rows, columns)
        )

    def _decode_rows(self, stored: Stored, out: torch.Tensor) -> None:
        step = decode_e8m0(stored[self.scale_name(stored)])
        values = self._decode_elements(stored["weight"]).unflatten(-1, (-1, GROUP)) * step.unsqueeze(-1)
        out.copy_(values.flatten(-2))

    def _cut(self, stored: Stored, rows: range, columns: range) -> Stored:
        groups, row, scale_name = (
            whole_groups(self.name, columns, GROUP),
            as_slice(rows),
            self.scale_name(stored),
        )
        packed = slice(columns.start // self.per_byte, columns.stop // self.per_byte)
        tensors = {
            "weight": stored["weight"][..., row, packed],
            scale_name: stored[scale_name][..., row, as_slice(groups)],
        }
        return Stored(self.name, tensors, (*stored.shape[:-2], len(rows), len(columns)))
