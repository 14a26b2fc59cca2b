"""BF16, F16 and F32: unquantized weights, one tensor `weight`, any shape."""

from collections.abc import Mapping

import torch

from intarsia.formats.base import Format, TensorSpec, source
from intarsia.formats.layout import as_slice, require, require_dtype
from intarsia.formats.stored import Stored


class Plain(Format):
    """A weight stored as numbers of one dtype. Encoding to another dtype rounds once, to nearest even."""

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.name = name  # type: ignore[misc]
        self.dtype = dtype

    def layout(self, shape: tuple[int, ...]) -> dict[str, TensorSpec]:
        return {"weight": TensorSpec(self.dtype, shape)}

    def encode(self, weight: torch.Tensor, *, amax: torch.Tensor | float | None = None) -> Stored:
        whole = source(weight, self.name)
        return Stored(self.name, {"weight": whole.to(self.dtype)}, tuple(whole.shape))

    def stored(self, tensors: Mapping[str, torch.Tensor], *, origin: tuple[int, int] = (0, 0)) -> Stored:
        require(self.name, tensors, ["weight"])
        require_dtype(f"{self.name} weight", tensors["weight"], self.dtype)
        return Stored(self.name, tensors, tuple(tensors["weight"].shape))

    def _decode_rows(self, stored: Stored, out: torch.Tensor) -> None:
        out.copy_(stored["weight"])

    def _cut(self, stored: Stored, rows: range, columns: range) -> Stored:
        part = stored["weight"][..., as_slice(rows), as_slice(columns)]
        return Stored(self.name, {"weight": part}, tuple(part.shape))
