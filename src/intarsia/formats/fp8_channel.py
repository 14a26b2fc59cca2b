"""FP8_PER_CHANNEL_PER_TOKEN: E4M3 elements under one float32 scale a row; activations are scaled per token at run time."""

from collections.abc import Mapping

import torch

from intarsia.formats.base import Format, TensorSpec, refuse_not_finite, source, true_divide
from intarsia.formats.codes import E4M3_MAX, decode_e4m3, encode_e4m3
from intarsia.formats.layout import as_slice, require, require_dtype, require_matrix, require_shape
from intarsia.formats.stored import Stored


class Fp8Channel(Format):
    """FP8 with a scale a row, stored as [rows] or [rows, 1]. The quotient is rounded once."""

    name = "FP8_PER_CHANNEL_PER_TOKEN"

    def layout(self, shape: tuple[int, ...]) -> dict[str, TensorSpec]:
        return {
            "weight": TensorSpec(torch.float8_e4m3fn, shape),
            "weight_scale": TensorSpec(torch.float32, tuple(shape[:-1])),
        }

    def encode(self, weight: torch.Tensor, *, amax: torch.Tensor | float | None = None) -> Stored:
        whole = source(weight, self.name)
        row_max = whole.abs().amax(dim=-1).float()
        if not bool(torch.isfinite(row_max).all()):
            refuse_not_finite(whole, self.name)
        scale = torch.where(row_max == 0, 1.0, true_divide(row_max, E4M3_MAX))
        tensors = {"weight": encode_e4m3(whole.float() / scale.unsqueeze(-1)), "weight_scale": scale}
        return Stored(self.name, tensors, tuple(whole.shape))

    def stored(self, tensors: Mapping[str, torch.Tensor], *, origin: tuple[int, int] = (0, 0)) -> Stored:
        require(self.name, tensors, ["weight", "weight_scale"])
        weight, scale = tensors["weight"], tensors["weight_scale"]
        require_dtype(f"{self.name} weight", weight, torch.float8_e4m3fn)
        require_matrix(f"{self.name} weight", weight)
        require_dtype(f"{self.name} weight_scale", scale, torch.float32)
        per_row = tuple(weight.shape[:-1])
        require_shape(f"{self.name} weight_scale", scale, per_row, (*per_row, 1))
        return Stored(self.name, tensors, tuple(weight.shape))

    def _decode_rows(self, stored: Stored, out: torch.Tensor) -> None:
        out.copy_(decode_e4m3(stored["weight"]) * stored["weight_scale"].reshape(-1, 1))

    def _cut(self, stored: Stored, rows: range, columns: range) -> Stored:
        scale, row, lead = stored["weight_scale"], as_slice(rows), stored.shape[:-2]
        tensors = {
            "weight": stored["weight"][..., row, as_slice(columns)],
            "weight_scale": scale[..., row, :] if scale.ndim == len(stored.shape) else scale[..., row],
        }
        return Stored(self.name, tensors, (*lead, len(rows), len(columns)))
