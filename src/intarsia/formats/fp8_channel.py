"""FP8_PER_CHANNEL_PER_TOKEN: E4M3 elements under one float32 scale a row.

Activations are scaled per token while running, so nothing is stored for them.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from intarsia.core.errors import Violation
from intarsia.formats import checks
from intarsia.formats.base import Format, TensorSpec, as_slice
from intarsia.formats.codes import E4M3_MAX, chunks, decode_e4m3_into, encode_e4m3_into
from intarsia.formats.fp8 import join_e4m3, row_maxima
from intarsia.formats.sources import require_finite, source, true_divide
from intarsia.formats.stored import Stored

AMAX_MIN = 2.0**-126
"""nvidia-modelopt raises smaller maxima of a row or block to this one before it derives their scale."""


class Fp8Channel(Format):
    """FP8 with a scale a row, stored as [rows] or [rows, 1]. The quotient is rounded once."""

    name = "FP8_PER_CHANNEL_PER_TOKEN"

    def layout(self, shape: tuple[int, ...]) -> dict[str, TensorSpec]:
        return {
            "weight": TensorSpec(torch.float8_e4m3fn, shape),
            "weight_scale": TensorSpec(torch.float32, tuple(shape[:-1])),
        }

    def encode(self, weight: Tensor, *, amax: Tensor | float | None = None) -> Stored:
        whole = source(weight, self.name)
        row_max = row_maxima(whole)
        require_finite(whole, row_max, self.name)
        scale = scale_of(row_max)
        elements = torch.empty(whole.shape, dtype=torch.float8_e4m3fn, device=whole.device)
        flat, target, by_row = (
            whole.view(-1, whole.shape[-1]),
            elements.view(-1, whole.shape[-1]),
            scale.view(-1, 1),
        )
        for part in chunks(flat):
            encode_e4m3_into(flat[part].to(torch.float32, copy=True).div_(by_row[part]), target[part])
        return Stored(self.name, {"weight": elements, "weight_scale": scale}, tuple(whole.shape))

    def _problems(self, tensors: Mapping[str, Tensor], origin: tuple[int, int]) -> list[Violation]:
        found = checks.tensor_set(tensors, ("weight", "weight_scale"), ())
        if found:
            return found
        weight, scale = tensors["weight"], tensors["weight_scale"]
        found = checks.dtype("weight", weight, torch.float8_e4m3fn) + checks.matrix("weight", weight)
        if found:
            return found
        rows = tuple(weight.shape[:-1])
        return checks.dtype("weight_scale", scale, torch.float32) + checks.shape(
            "weight_scale", scale, rows, (*rows, 1)
        )

    def _shape(self, tensors: Mapping[str, Tensor]) -> tuple[int, ...]:
        return tuple(tensors["weight"].shape)

    def _decode(self, stored: Stored, rows: slice, out: Tensor) -> None:
        decode_e4m3_into(stored["weight"][rows], out)
        out.mul_(stored["weight_scale"][rows].reshape(-1, 1))

    def _cut(self, stored: Stored, rows: range, columns: range) -> Stored:
        scale, row, lead = stored["weight_scale"], as_slice(rows), stored.shape[:-2]
        tensors = {
            "weight": stored["weight"][..., row, as_slice(columns)],
            "weight_scale": scale[..., row, :] if scale.ndim == len(stored.shape) else scale[..., row],
        }
        return Stored(self.name, tensors, (*lead, len(rows), len(columns)))

    def _join(self, parts: Sequence[Stored]) -> dict[str, Tensor]:
        axis = len(parts[0].shape) - 2
        scale = torch.cat([part["weight_scale"] for part in parts], dim=axis)
        return {"weight": join_e4m3(parts), "weight_scale": scale}

    def _bad_values(self, stored: Stored, elements: bool) -> list[Violation]:
        found = checks.positive("weight_scale", stored["weight_scale"])
        return found + (checks.e4m3_elements("weight", stored["weight"]) if elements else [])


def scale_of(amax: Tensor) -> Tensor:
    """amax / 448 of rows or blocks; one where all is zero, as nvidia-modelopt's exporter has it."""
    return true_divide(torch.where(amax == 0, E4M3_MAX, amax.clamp(min=AMAX_MIN)), E4M3_MAX)
