"""FP8_PB_WO: E4M3 elements under one scale for each 128 x 128 block.

    w = e4m3 * scale[row // 128, column // 128]

nvidia-modelopt stores float32 scales `weight_scale` [a, 1, b, 1]; DeepSeek's convention is `weight_scale_inv` [a, b] in
float32 or bfloat16. Both multiply. A cut keeps the scales of every block it touches and remembers in `origin` where inside
its first block it starts.
"""

from collections.abc import Mapping

import torch

from intarsia.formats.base import Format, TensorSpec, refuse_not_finite, source, true_divide
from intarsia.formats.codes import E4M3_MAX, decode_e4m3, encode_e4m3
from intarsia.formats.layout import as_slice, require, require_dtype, require_matrix, require_shape
from intarsia.formats.stored import Stored

SIDE = 128
SCALE_NAMES = ("weight_scale", "weight_scale_inv")


class Fp8Block(Format):
    """FP8 with a scale a 128 x 128 block; edge blocks are smaller, the weight keeps its true shape."""

    name = "FP8_PB_WO"
    block = (SIDE, SIDE)

    def layout(self, shape: tuple[int, ...]) -> dict[str, TensorSpec]:
        *lead, rows, columns = shape
        return {
            "weight": TensorSpec(torch.float8_e4m3fn, shape),
            "weight_scale": TensorSpec(torch.float32, (*lead, -(-rows // SIDE), 1, -(-columns // SIDE), 1)),
        }

    def encode(self, weight: torch.Tensor, *, amax: torch.Tensor | float | None = None) -> Stored:
        whole = source(weight, self.name)
        *lead, rows, columns = whole.shape
        down, across = -(-rows // SIDE), -(-columns // SIDE)
        values = whole.float()
        padded = torch.nn.functional.pad(values.abs(), (0, across * SIDE - columns, 0, down * SIDE - rows))
        block_max = padded.view(*lead, down, SIDE, across, SIDE).amax(dim=(-3, -1))
        if not bool(torch.isfinite(block_max).all()):
            refuse_not_finite(whole, self.name)
        scale = torch.where(block_max == 0, 1.0, true_divide(block_max, E4M3_MAX))
        quotient = values / spread(scale, rows, columns, (0, 0))
        tensors = {"weight": encode_e4m3(quotient), "weight_scale": scale.view(*lead, down, 1, across, 1)}
        return Stored(self.name, tensors, tuple(whole.shape))

    def stored(self, tensors: Mapping[str, torch.Tensor], *, origin: tuple[int, int] = (0, 0)) -> Stored:
        name = scale_name(tensors)
        require(self.name, tensors, ["weight", name])
        weight, scale = tensors["weight"], tensors[name]
        require_dtype(f"{self.name} weight", weight, torch.float8_e4m3fn)
        require_matrix(f"{self.name} weight", weight)
        require_dtype(f"{self.name} {name}", scale, torch.float32, torch.bfloat16)
        *lead, rows, columns = weight.shape
        down, across = -(-(rows + origin[0]) // SIDE), -(-(columns + origin[1]) // SIDE)
        require_shape(f"{self.name} {name}", scale, (*lead, down, across), (*lead, down, 1, across, 1))
        return Stored(self.name, tensors, tuple(weight.shape), origin)

    def _decode_rows(self, stored: Stored, out: torch.Tensor) -> None:
        scale = stored[scale_name(stored)].float()
        grid = scale.reshape(scale.shape[0], -1)
        out.copy_(decode_e4m3(stored["weight"]) * spread(grid, stored.rows, stored.columns, stored.origin))

    def _cut(self, stored: Stored, rows: range, columns: range) -> Stored:
        top, left = rows.start + stored.origin[0], columns.start + stored.origin[1]
        down = slice(top // SIDE, -(-(top + len(rows)) // SIDE))
        across = slice(left // SIDE, -(-(left + len(columns)) // SIDE))
        name, lead = scale_name(stored), stored.shape[:-2]
        scale = stored[name]
        ranked = scale.ndim == len(lead) + 4
        tensors = {
            "weight": stored["weight"][..., as_slice(rows), as_slice(columns)],
            name: scale[..., down, :, across, :] if ranked else scale[..., down, across],
        }
        return Stored(self.name, tensors, (*lead, len(rows), len(columns)), (top % SIDE, left % SIDE))


def scale_name(tensors: Mapping[str, torch.Tensor]) -> str:
    """The name under which the block scales are stored."""
    return next((name for name in SCALE_NAMES if name in tensors), SCALE_NAMES[0])


def spread(grid: torch.Tensor, rows: int, columns: int, origin: tuple[int, int]) -> torch.Tensor:
    """One scale an element [..., rows, columns] of a grid [..., a, b], for a weight that starts at `origin`."""
    full = grid.repeat_interleave(SIDE, dim=-2).repeat_interleave(SIDE, dim=-1)
    return full[..., origin[0] : origin[0] + rows, origin[1] : origin[1] + columns]
