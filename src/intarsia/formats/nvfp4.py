"""NVFP4: 4-bit floats in blocks of 16 columns, an E4M3 scale a block and a float32 global scale.

    w = e2m1 * weight_scale * weight_scale_2

The encoder is the dynamic path of nvidia-modelopt 0.47.0. W4A16_NVFP4 has the same tensors; NVFP4 may also carry the
`input_scale` of calibrated activations.
"""

from collections.abc import Mapping

import torch

from intarsia.formats.base import Format, TensorSpec, refuse_not_finite, source, true_divide
from intarsia.formats.codes import (
    E2M1_MAX,
    E4M3_MAX,
    decode_e2m1,
    decode_e4m3,
    encode_e2m1,
    encode_e4m3,
    pack,
)
from intarsia.formats.errors import UnencodableError
from intarsia.formats.layout import (
    as_slice,
    cut_global,
    require,
    require_dtype,
    require_global,
    require_matrix,
    require_shape,
    rows_of_global,
    whole_groups,
)
from intarsia.formats.stored import Stored

GROUP = 16
SCALE_MIN = 2.0**-9
"""The smallest positive E4M3 number: a block scale is never rounded down to zero."""


class Nvfp4(Format):
    """NVFP4 with or without `input_scale`, depending on the name."""

    block = (1, GROUP)

    def __init__(self, name: str) -> None:
        self.name = name  # type: ignore[misc]
        if name == "NVFP4":
            self.optional = frozenset({"input_scale"})  # type: ignore[misc]

    def layout(self, shape: tuple[int, ...]) -> dict[str, TensorSpec]:
        *lead, rows, columns = shape
        if columns % GROUP:
            raise UnencodableError(self.name, found=f"{columns} columns", expected=f"a multiple of {GROUP}")
        return {
            "weight": TensorSpec(torch.uint8, (*lead, rows, columns // 2)),
            "weight_scale": TensorSpec(torch.float8_e4m3fn, (*lead, rows, columns // GROUP)),
            "weight_scale_2": TensorSpec(torch.float32, tuple(lead)),
        }

    def encode(self, weight: torch.Tensor, *, amax: torch.Tensor | float | None = None) -> Stored:
        whole = source(weight, self.name)
        self.layout(tuple(whole.shape))
        largest = whole.abs().amax(dim=(-2, -1)).float()
        if not bool(torch.isfinite(largest).all()):
            refuse_not_finite(whole, self.name)
        shared = largest if amax is None else torch.as_tensor(amax, dtype=torch.float32, device=whole.device)
        scale_2 = true_divide(shared, E2M1_MAX * E4M3_MAX)
        per_row = scale_2.reshape(*scale_2.shape, *[1] * (whole.ndim - scale_2.ndim))
        scale_2 = torch.where(scale_2 == 0, 1.0, scale_2)
        blocks = whole.float().unflatten(-1, (-1, GROUP))
        block_max = blocks.abs().amax(dim=-1)
        scale = block_max / (E2M1_MAX * per_row)
        scale = torch.where(block_max == 0, 1.0, scale).clamp(SCALE_MIN, E4M3_MAX)
        scale = encode_e4m3(scale)
        step = decode_e4m3(scale) * per_row
        codes = torch.where(block_max.unsqueeze(-1) == 0, 0, encode_e2m1(blocks / step.unsqueeze(-1)))
        packed = pack(codes.flatten(-2))
        tensors = {"weight": packed, "weight_scale": scale, "weight_scale_2": scale_2}
        return Stored(self.name, tensors, tuple(whole.shape))

    def stored(self, tensors: Mapping[str, torch.Tensor], *, origin: tuple[int, int] = (0, 0)) -> Stored:
        require(self.name, tensors, ["weight", "weight_scale", "weight_scale_2"], self.optional)
        weight, scale, scale_2 = tensors["weight"], tensors["weight_scale"], tensors["weight_scale_2"]
        require_dtype(f"{self.name} weight", weight, torch.uint8)
        require_matrix(f"{self.name} weight", weight)
        *lead, rows, half = weight.shape
        require_dtype(f"{self.name} weight_scale", scale, torch.float8_e4m3fn)
        require_shape(f"{self.name} weight_scale", scale, (*lead, rows, 2 * half // GROUP))
        require_shape(f"{self.name} weight", weight, (*lead, rows, scale.shape[-1] * GROUP // 2))
        require_dtype(f"{self.name} weight_scale_2", scale_2, torch.float32)
        require_global(f"{self.name} weight_scale_2", scale_2, tuple(lead), rows)
        return Stored(self.name, tensors, (*lead, rows, 2 * half))

    def _decode_rows(self, stored: Stored, out: torch.Tensor) -> None:
        scale_2 = rows_of_global(stored["weight_scale_2"], stored.rows).unsqueeze(-1)
        step = decode_e4m3(stored["weight_scale"]) * scale_2
        values = decode_e2m1(stored["weight"]).unflatten(-1, (-1, GROUP)) * step.unsqueeze(-1)
        out.copy_(values.flatten(-2))

    def _cut(self, stored: Stored, rows: range, columns: range) -> Stored:
        groups = whole_groups(self.name, columns, GROUP)
        row = as_slice(rows)
        tensors = dict(stored.tensors)
        tensors["weight"] = stored["weight"][..., row, columns.start // 2 : columns.stop // 2]
        tensors["weight_scale"] = stored["weight_scale"][..., row, as_slice(groups)]
        lead = stored.shape[:-2]
        tensors["weight_scale_2"] = cut_global(
            self.name, stored["weight_scale_2"], len(lead), stored.rows, rows
        )
        return Stored(self.name, tensors, (*lead, len(rows), len(columns)))
