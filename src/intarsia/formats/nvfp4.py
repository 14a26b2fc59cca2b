"""NVFP4: 4-bit floats, an E4M3 scale for each 16 columns of a row, and a float32 global scale.

    w = e2m1 * weight_scale * weight_scale_2

`encode` is the dynamic path of nvidia-modelopt 0.47.0. W4A16_NVFP4 has the same weight tensors; NVFP4 may
also carry the `input_scale` of calibrated activations.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from intarsia.core.errors import Violation
from intarsia.formats import checks, global_scales
from intarsia.formats.base import Format, TensorSpec, as_slice, whole_groups
from intarsia.formats.codes import (
    E2M1_MAX,
    E4M3_MAX,
    block_maxima,
    chunks,
    decode_e2m1_into,
    decode_e4m3,
    encode_e4m3,
    pack_e2m1_into,
)
from intarsia.formats.sources import (
    per_row,
    require_columns,
    require_finite,
    shared_amax,
    source,
    true_divide,
)
from intarsia.formats.stored import Stored

GROUP = 16
SCALE_MIN = 2.0**-9
"""The smallest E4M3 number above zero: a block scale is never rounded down to nothing."""


class Nvfp4(Format):
    """NVFP4 or W4A16_NVFP4."""

    block = (1, GROUP)

    def __init__(self, name: str, *, activations: bool) -> None:
        self.name = name
        self.optional = frozenset({"input_scale"}) if activations else frozenset()

    def layout(self, shape: tuple[int, ...]) -> dict[str, TensorSpec]:
        *lead, rows, columns = shape
        require_columns(self.name, columns, GROUP)
        return {
            "weight": TensorSpec(torch.uint8, (*lead, rows, columns // 2)),
            "weight_scale": TensorSpec(torch.float8_e4m3fn, (*lead, rows, columns // GROUP)),
            "weight_scale_2": TensorSpec(torch.float32, tuple(lead)),
        }

    def encode(self, weight: Tensor, *, amax: Tensor | float | None = None) -> Stored:
        whole = source(weight, self.name)
        *lead, rows, columns = whole.shape
        require_columns(self.name, columns, GROUP)
        flat = whole.view(-1, columns)
        block_max = block_maxima(flat, GROUP)
        row_max = block_max.amax(dim=1)
        require_finite(whole, row_max, self.name)
        shared = shared_amax(whole, row_max.view(*lead, rows), amax, self.name)
        scale_2 = true_divide(shared, E2M1_MAX * E4M3_MAX)
        # nvidia-modelopt would write a zero here, and divide by it: the weight is zero, or too small to be
        # told from it.
        scale_2 = torch.where(scale_2 == 0, 1.0, scale_2)
        packed, scale = encode_under(flat, block_max, per_row(scale_2, len(lead), rows))
        tensors = {
            "weight": packed.view(*lead, rows, -1),
            "weight_scale": scale.view(*lead, rows, -1),
            "weight_scale_2": scale_2,
        }
        return Stored(self.name, tensors, tuple(whole.shape))

    def encode_again(self, weight: Tensor, weight_scale_2: Tensor) -> Stored:
        """Encodes under a stored global scale ([*lead] or [*lead, parts]), to hold a checkpoint against its
        source.
        """
        whole = source(weight, self.name)
        *lead, rows, columns = whole.shape
        require_columns(self.name, columns, GROUP)
        flat = whole.view(-1, columns)
        block_max = block_maxima(flat, GROUP)
        require_finite(whole, block_max, self.name)
        packed, scale = encode_under(flat, block_max, per_row(weight_scale_2, len(lead), rows))
        tensors = {
            "weight": packed.view(*lead, rows, -1),
            "weight_scale": scale.view(*lead, rows, -1),
            "weight_scale_2": weight_scale_2,
        }
        return self.stored(tensors)

    def _problems(self, tensors: Mapping[str, Tensor], origin: tuple[int, int]) -> list[Violation]:
        found = checks.tensor_set(tensors, ("weight", "weight_scale", "weight_scale_2"), self.optional)
        if found:
            return found
        weight, scale = tensors["weight"], tensors["weight_scale"]
        found = checks.dtype("weight", weight, torch.uint8) + checks.matrix("weight", weight)
        if found:
            return found
        *lead, rows, half = weight.shape
        if half * 2 % GROUP:
            return [Violation("shape", "weight", f"{half * 2} columns", f"a multiple of {GROUP}")]
        found = checks.shape("weight_scale", scale, (*lead, rows, half * 2 // GROUP))
        if not any(item.rule == "swizzled-scale" for item in found):
            found += checks.dtype("weight_scale", scale, torch.float8_e4m3fn)
        found += checks.global_scale("weight_scale_2", tensors["weight_scale_2"], tuple(lead), rows)
        return found + checks.input_scale(tensors, tuple(lead))

    def _shape(self, tensors: Mapping[str, Tensor]) -> tuple[int, ...]:
        *lead, half = tensors["weight"].shape
        return (*lead, 2 * half)

    def _decode(self, stored: Stored, rows: slice, out: Tensor) -> None:
        scale_2 = global_scales.of_rows(stored["weight_scale_2"], stored.rows, rows)
        step = decode_e4m3(stored["weight_scale"][rows]).mul_(scale_2)
        decode_e2m1_into(stored["weight"][rows], out)
        out.view(-1, GROUP).mul_(step.view(-1, 1))

    def _cut(self, stored: Stored, rows: range, columns: range) -> Stored:
        groups, row, lead = whole_groups(self.name, columns, GROUP), as_slice(rows), len(stored.shape) - 2
        tensors = dict(stored.tensors)
        tensors["weight"] = stored["weight"][..., row, columns.start // 2 : columns.stop // 2]
        tensors["weight_scale"] = stored["weight_scale"][..., row, groups]
        tensors["weight_scale_2"] = global_scales.cut(
            self.name, stored["weight_scale_2"], lead, stored.rows, rows
        )
        return Stored(self.name, tensors, (*stored.shape[:-2], len(rows), len(columns)))

    def _join(self, parts: Sequence[Stored]) -> dict[str, Tensor]:
        return {
            "weight": torch.cat([part["weight"] for part in parts], dim=-2),
            "weight_scale": torch.cat(
                [part["weight_scale"].view(torch.uint8) for part in parts], dim=-2
            ).view(torch.float8_e4m3fn),
            "weight_scale_2": global_scales.join(self.name, parts, "weight_scale_2"),
            **global_scales.join_input_scale(parts),
        }

    def _bad_values(self, stored: Stored, elements: bool) -> list[Violation]:
        scale, scale_2 = stored["weight_scale"], stored["weight_scale_2"]
        if bool((scale_2 == 0).all()) and bool(((scale.view(torch.uint8) & 0x7F) == 0x7F).all()):
            action = "encode the all-zero weight again; its stored form decodes to NaN"
            found = "a global scale of zero under NaN block scales"
            return [Violation("zero-weight-export", "weight_scale_2", found, "a scale above zero", action)]
        found_all = checks.e4m3_scales("weight_scale", scale) + checks.positive("weight_scale_2", scale_2)
        if "input_scale" in stored:
            found_all += checks.positive("input_scale", stored["input_scale"])
        return found_all

    def _oddities(self, stored: Stored) -> list[Violation]:
        zero = (stored["weight_scale"].view(torch.uint8) & 0x7F) == 0
        codes = (stored["weight"] & 0x77).view(*zero.shape, GROUP // 2).any(dim=-1)
        expected = "a scale above zero, or codes of zero: the block decodes to zeros"
        scales = stored["weight_scale"].view(torch.uint8)
        found = checks.bad_entries("zero-scale", "weight_scale", scales, zero & codes, expected)
        large = stored["weight_scale_2"] > 1
        expected = "a multiplier below one; larger ones are often a divisor under the wrong name"
        return found + checks.bad_entries(
            "large-global", "weight_scale_2", stored["weight_scale_2"], large, expected
        )


def encode_under(flat: Tensor, block_max: Tensor, scale_2: Tensor) -> tuple[Tensor, Tensor]:
    """Packed codes and block scales of rows [n, columns] under a global scale for each row [n, 1].

    The block scale is bmax / (6 ws2), with zero replaced by one, clamped to [2^-9, 448] and rounded; the
    codes divide by the rounded scale.
    """
    scale = block_max / (E2M1_MAX * scale_2)
    scale = encode_e4m3(scale.masked_fill_(scale == 0, 1.0).clamp_(min=SCALE_MIN))
    packed = torch.empty(flat.shape[0], flat.shape[1] // 2, dtype=torch.uint8, device=flat.device)
    for part in chunks(flat):
        step = decode_e4m3(scale[part]).mul_(scale_2[part])
        # A product that underflows to zero decodes to zero whatever the codes are.
        step.masked_fill_(step == 0, torch.inf)
        values = flat[part].to(torch.float32, copy=True).view(-1, GROUP).div_(step.view(-1, 1))
        pack_e2m1_into(values, packed[part])
    return packed, scale
