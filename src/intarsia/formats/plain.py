"""BF16, F16 and F32: unquantized weights, one tensor `weight`."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from intarsia.core.errors import Violation
from intarsia.formats import checks
from intarsia.formats.base import Format, TensorSpec, as_slice
from intarsia.formats.sources import source
from intarsia.formats.stored import Stored


class Plain(Format):
    """Numbers of one dtype. Encoding to another dtype rounds once, to nearest even, and keeps NaN and
    infinity.
    """

    def __init__(self, name: str, dtype: torch.dtype) -> None:
        self.name = name
        self.dtype = dtype

    def layout(self, shape: tuple[int, ...]) -> dict[str, TensorSpec]:
        return {"weight": TensorSpec(self.dtype, shape)}

    def encode(self, weight: Tensor, *, amax: Tensor | float | None = None) -> Stored:
        whole = source(weight, self.name)
        return Stored(self.name, {"weight": whole.to(self.dtype)}, tuple(whole.shape))

    def _problems(self, tensors: Mapping[str, Tensor], origin: tuple[int, int]) -> list[Violation]:
        found = checks.tensor_set(tensors, ["weight"], ())
        if not found:
            found = checks.dtype("weight", tensors["weight"], self.dtype)
            found += checks.matrix("weight", tensors["weight"])
        return found

    def _shape(self, tensors: Mapping[str, Tensor]) -> tuple[int, ...]:
        return tuple(tensors["weight"].shape)

    def _decode(self, stored: Stored, rows: slice, out: Tensor) -> None:
        out.copy_(stored["weight"][rows])

    def _cut(self, stored: Stored, rows: range, columns: range) -> Stored:
        part = stored["weight"][..., as_slice(rows), as_slice(columns)]
        return Stored(self.name, {"weight": part}, tuple(part.shape))

    def _join(self, parts: Sequence[Stored]) -> dict[str, Tensor]:
        return {"weight": torch.cat([part["weight"] for part in parts], dim=-2)}

    def _bad_values(self, stored: Stored, elements: bool) -> list[Violation]:
        if not elements:
            return []
        bad = ~torch.isfinite(stored["weight"])
        return checks.bad_entries("not-finite", "weight", stored["weight"], bad, "finite values")
