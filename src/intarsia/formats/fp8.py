"""FP8: E4M3 elements under one float32 scale a matrix.

The quotient is rounded to the weight's own dtype before E4M3, as nvidia-modelopt 0.47.0 does: for a bfloat16 or float16
weight that is a second rounding, and part of the format's bytes.
"""

from collections.abc import Mapping

import torch

from intarsia.formats.base import Format, TensorSpec, refuse_not_finite, source, true_divide
from intarsia.formats.codes import E4M3_MAX, decode_e4m3, encode_e4m3
from intarsia.formats.layout import (
    as_slice,
    cut_global,
    require,
    require_dtype,
    require_global,
    require_matrix,
    rows_of_global,
)
from intarsia.formats.stored import Stored


class Fp8(Format):
    """FP8 with a scale a tensor; may carry the `input_scale` of calibrated activations."""

    name = "FP8"
    optional = frozenset({"input_scale"})

    def layout(self, shape: tuple[int, ...]) -> dict[str, TensorSpec]:
        return {
            "weight": TensorSpec(torch.float8_e4m3fn, shape),
            "weight_scale": TensorSpec(torch.float32, tuple(shape[:-2])),
        }

    def encode(self, weight: torch.Tensor, *, amax: torch.Tensor | float | None = None) -> Stored:
        whole = source(weight, self.name)
        largest = whole.abs().amax(dim=(-2, -1)).float()
        if not bool(torch.isfinite(largest).all()):
            refuse_not_finite(whole, self.name)
        shared = largest if amax is None else torch.as_tensor(amax, dtype=torch.float32, device=whole.device)
        scale = torch.where(shared == 0, 1.0, true_divide(shared, E4M3_MAX))
        quotient = (whole.float() / scale.reshape(*scale.shape, *[1] * (whole.ndim - scale.ndim))).to(
            whole.dtype
        )
        tensors = {"weight": encode_e4m3(quotient.float()), "weight_scale": scale}
        return Stored(self.name, tensors, tuple(whole.shape))

    def stored(self, tensors: Mapping[str, torch.Tensor], *, origin: tuple[int, int] = (0, 0)) -> Stored:
        require(self.name, tensors, ["weight", "weight_scale"], self.optional)
        weight, scale = tensors["weight"], tensors["weight_scale"]
        require_dtype(f"{self.name} weight", weight, torch.float8_e4m3fn)
        require_matrix(f"{self.name} weight", weight)
        require_dtype(f"{self.name} weight_scale", scale, torch.float32)
        require_global(f"{self.name} weight_scale", scale, tuple(weight.shape[:-2]), weight.shape[-2])
        return Stored(self.name, tensors, tuple(weight.shape))

    def _decode_rows(self, stored: Stored, out: torch.Tensor) -> None:
        scale = rows_of_global(stored["weight_scale"], stored.rows).unsqueeze(-1)
        out.copy_(decode_e4m3(stored["weight"]) * scale)

    def _cut(self, stored: Stored, rows: range, columns: range) -> Stored:
        tensors = dict(stored.tensors)
        tensors["weight"] = stored["weight"][..., as_slice(rows), as_slice(columns)]
        lead = stored.shape[:-2]
        tensors["weight_scale"] = cut_global(self.name, stored["weight_scale"], len(lead), stored.rows, rows)
        return Stored(self.name, tensors, (*lead, len(rows), len(columns)))
