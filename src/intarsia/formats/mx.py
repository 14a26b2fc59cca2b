"""What MXFP8 and MXFP4 share: 32 columns of a row under one E8M0 exponent, no global scale."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from intarsia.core.errors import Violation
from intarsia.formats import checks
from intarsia.formats.base import Format, TensorSpec, as_slice, whole_groups
from intarsia.formats.codes import block_maxima, ceil_log2_byte, chunks, decode_e8m0, e8m0_reciprocals
from intarsia.formats.sources import require_columns, require_finite, source, true_divide
from intarsia.formats.stored import Stored

GROUP = 32


class Mx(Format):
    """w = element * 2^(weight_scale - 127). The scale is a byte, whether a file calls it U8 or F8_E8M0."""

    block = (1, GROUP)
    element: ClassVar[torch.dtype]
    per_byte: ClassVar[int]
    largest: ClassVar[float]
    scale_names: ClassVar[tuple[str, ...]] = ("weight_scale",)

    @abstractmethod
    def _encode_elements(self, values: Tensor, out: Tensor) -> None:
        """Writes the stored elements of scaled float32 values, which may be overwritten."""

    @abstractmethod
    def _decode_elements(self, weight: Tensor, out: Tensor) -> None:
        """Writes the float32 values of stored elements, before scaling."""

    def layout(self, shape: tuple[int, ...]) -> dict[str, TensorSpec]:
        *lead, rows, columns = shape
        require_columns(self.name, columns, GROUP)
        return {
            "weight": TensorSpec(self.element, (*lead, rows, columns // self.per_byte)),
            "weight_scale": TensorSpec(torch.uint8, (*lead, rows, columns // GROUP)),
        }

    def encode(self, weight: Tensor, *, amax: Tensor | float | None = None) -> Stored:
        whole = source(weight, self.name)
        *lead, rows, columns = whole.shape
        require_columns(self.name, columns, GROUP)
        flat = whole.view(-1, columns)
        block_max = block_maxima(flat, GROUP)
        require_finite(whole, block_max, self.name)
        # Rounded up, so that no element saturates; a block of zeros has exponent byte 0.
        exponents = ceil_log2_byte(true_divide(block_max, self.largest))
        unscale = e8m0_reciprocals(exponents)
        elements = torch.empty(
            flat.shape[0], columns // self.per_byte, dtype=self.element, device=flat.device
        )
        for part in chunks(flat):
            values = flat[part].to(torch.float32, copy=True)
            values.view(-1, GROUP).mul_(unscale[part].view(-1, 1))
            self._encode_elements(values, elements[part])
        tensors = {
            "weight": elements.view(*lead, rows, -1),
            "weight_scale": exponents.view(*lead, rows, -1),
        }
        return Stored(self.name, tensors, tuple(whole.shape))

    def scale_name(self, tensors: Mapping[str, Tensor]) -> str:
        """The name under which the scale is stored."""
        return next((name for name in self.scale_names if name in tensors), self.scale_names[0])

    def _problems(self, tensors: Mapping[str, Tensor], origin: tuple[int, int]) -> list[Violation]:
        scale_name = self.scale_name(tensors)
        found = checks.tensor_set(tensors, ("weight", scale_name), ())
        if found:
            return found
        weight, scale = tensors["weight"], tensors[scale_name]
        found = checks.dtype("weight", weight, self.element) + checks.matrix("weight", weight)
        if found:
            return found
        *lead, rows, packed = weight.shape
        columns = packed * self.per_byte
        if columns % GROUP:
            return [Violation("shape", "weight", f"{columns} columns", f"a multiple of {GROUP}")]
        found = checks.shape(scale_name, scale, (*lead, rows, columns // GROUP))
        return found + checks.dtype(scale_name, scale, torch.uint8, torch.float8_e8m0fnu)

    def stored(
        self, tensors: Mapping[str, Tensor], *, origin: tuple[int, int] = (0, 0), row_parts: int = 1
    ) -> Stored:
        """Wraps tensors by suffix; exponents of any eight-bit dtype are kept as uint8. Raises LayoutError."""
        checked = super().stored(tensors, origin=origin, row_parts=row_parts)
        name = self.scale_name(checked)
        kept = {"weight": checked["weight"], name: checked[name].view(torch.uint8)}
        return Stored(self.name, kept, checked.shape)

    def _shape(self, tensors: Mapping[str, Tensor]) -> tuple[int, ...]:
        *lead, packed = tensors["weight"].shape
        return (*lead, packed * self.per_byte)

    def _decode(self, stored: Stored, rows: slice, out: Tensor) -> None:
        step = decode_e8m0(stored[self.scale_name(stored)][rows])
        self._decode_elements(stored["weight"][rows], out)
        out.view(-1, GROUP).mul_(step.view(-1, 1))

    def _cut(self, stored: Stored, rows: range, columns: range) -> Stored:
        groups, row, name = whole_groups(self.name, columns, GROUP), as_slice(rows), self.scale_name(stored)
        packed = slice(columns.start // self.per_byte, columns.stop // self.per_byte)
        tensors = {"weight": stored["weight"][..., row, packed], name: stored[name][..., row, groups]}
        return Stored(self.name, tensors, (*stored.shape[:-2], len(rows), len(columns)))

    def _join(self, parts: Sequence[Stored]) -> dict[str, Tensor]:
        name = self.scale_name(parts[0])
        bytes_ = torch.cat([part["weight"].view(torch.uint8) for part in parts], dim=-2)
        return {"weight": bytes_.view(self.element), name: torch.cat([part[name] for part in parts], dim=-2)}

    def _bad_values(self, stored: Stored, elements: bool) -> list[Violation]:
        name = self.scale_name(stored)
        found = checks.e8m0_scales(name, stored[name])
        if elements and self.element == torch.float8_e4m3fn:
            found += checks.e4m3_elements("weight", stored["weight"])
        return found
