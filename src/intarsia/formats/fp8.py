"""FP8: E4M3 elements under one float32 scale a matrix.

The quotient is rounded to the weight's own dtype before it is rounded to E4M3, as nvidia-modelopt 0.47.0
does: for a bfloat16 or float16 weight that is a second rounding, and part of what the bytes are.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from intarsia.core.errors import Violation
from intarsia.formats import checks, global_scales
from intarsia.formats.base import Format, TensorSpec, as_slice
from intarsia.formats.codes import E4M3_MAX, chunks, decode_e4m3_into, encode_e4m3_into, magnitude_bits
from intarsia.formats.sources import per_row, require_finite, shared_amax, source, true_divide
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

    def encode(self, weight: Tensor, *, amax: Tensor | float | None = None) -> Stored:
        whole = source(weight, self.name)
        *lead, rows, columns = whole.shape
        row_max = row_maxima(whole)
        require_finite(whole, row_max, self.name)
        shared = shared_amax(whole, row_max, amax, self.name)
        scale = true_divide(shared, E4M3_MAX)
        scale = torch.where(scale == 0, 1.0, scale)
        by_row = per_row(scale, len(lead), rows)
        elements = torch.empty(whole.shape, dtype=torch.float8_e4m3fn, device=whole.device)
        flat, target = whole.view(-1, columns), elements.view(-1, columns)
        for part in chunks(flat):
            quotient = flat[part].to(torch.float32, copy=True).div_(by_row[part])
            encode_e4m3_into(quotient.to(whole.dtype).float(), target[part])
        return Stored(self.name, {"weight": elements, "weight_scale": scale}, tuple(whole.shape))

    def _problems(self, tensors: Mapping[str, Tensor], origin: tuple[int, int]) -> list[Violation]:
        found = checks.tensor_set(tensors, ("weight", "weight_scale"), self.optional)
        if found:
            return found
        weight = tensors["weight"]
        found = checks.dtype("weight", weight, torch.float8_e4m3fn) + checks.matrix("weight", weight)
        if found:
            return found
        lead = tuple(weight.shape[:-2])
        found = checks.global_scale("weight_scale", tensors["weight_scale"], lead, weight.shape[-2])
        return found + checks.input_scale(tensors, lead)

    def _shape(self, tensors: Mapping[str, Tensor]) -> tuple[int, ...]:
        return tuple(tensors["weight"].shape)

    def _decode(self, stored: Stored, rows: slice, out: Tensor) -> None:
        decode_e4m3_into(stored["weight"][rows], out)
        out.mul_(global_scales.of_rows(stored["weight_scale"], stored.rows, rows))

    def _cut(self, stored: Stored, rows: range, columns: range) -> Stored:
        tensors, lead = dict(stored.tensors), stored.shape[:-2]
        tensors["weight"] = stored["weight"][..., as_slice(rows), as_slice(columns)]
        tensors["weight_scale"] = global_scales.cut(
            self.name, stored["weight_scale"], len(lead), stored.rows, rows
        )
        return Stored(self.name, tensors, (*lead, len(rows), len(columns)))

    def _join(self, parts: Sequence[Stored]) -> dict[str, Tensor]:
        return {
            "weight": join_e4m3(parts),
            "weight_scale": global_scales.join(self.name, parts, "weight_scale"),
            **global_scales.join_input_scale(parts),
        }

    def _bad_values(self, stored: Stored, elements: bool) -> list[Violation]:
        found = checks.positive("weight_scale", stored["weight_scale"])
        if "input_scale" in stored:
            found += checks.positive("input_scale", stored["input_scale"])
        return found + (checks.e4m3_elements("weight", stored["weight"]) if elements else [])


def row_maxima(whole: Tensor) -> Tensor:
    """The largest magnitude of every row, float32 [.., rows]."""
    flat = whole.view(-1, whole.shape[-1])
    largest = torch.empty(flat.shape[0], dtype=torch.float32, device=whole.device)
    for part in chunks(flat):
        largest[part] = magnitude_bits(flat[part]).amax(dim=1).view(torch.float32)
    return largest.view(whole.shape[:-1])


def join_e4m3(parts: Sequence[Stored]) -> Tensor:
    """The E4M3 elements of matrices below each other."""
    return torch.cat([part["weight"].view(torch.uint8) for part in parts], dim=-2).view(torch.float8_e4m3fn)
