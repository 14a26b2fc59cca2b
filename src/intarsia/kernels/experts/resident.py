"""Block scales of experts in tiles, compressed in memory and read so by the kernels, exceptions included.

Most scales of a row lie in a window of sixteen neighbouring byte values. A row keeps the window's beginning,
and a scale four bits:

    nibbles  int32 [tile, step, place 32, lane 4]   a byte a quarter: the two groups of a lane's columns
    bases    int32 [tile, place 32]                 a byte a quarter
    marks    int64 [tile, step, warp 4]             low half: the lanes (8 places x 4) with a scale outside
                                                    its window; high half: the first of their records
    records  int32 [n, 2]                           the eight scales of such a lane, in `packed`'s order

A byte is the row's base plus the nibble, or what the lane's record says. With the 0.3 % of exceptions that
GLM-5.3-Flash's checkpoint has it is 55 % of the plain bytes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

TILE = 128
"""Rows of a tile and columns of a step."""
WINDOW = 16
_LANES = torch.arange(32)


@dataclass(frozen=True, eq=False, slots=True)
class ResidentScales:
    """The scales [experts, rows, groups] of a stack in tiles, compressed; the first dimension of `nibbles`,
    `bases` and `marks` counts experts.
    """

    shape: tuple[int, int, int]
    nibbles: Tensor
    bases: Tensor
    marks: Tensor
    records: Tensor

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        tensors = (self.nibbles, self.bases, self.marks, self.records)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def compress(scales: Tensor) -> ResidentScales:
    """Scales uint8 [experts, rows, groups] in tiles, without a sign, in their compressed form; exact."""
    experts, rows, groups = scales.shape
    tiles, steps = rows // TILE, groups // 8
    device = scales.device
    bases = torch.empty(experts, tiles, 32, dtype=torch.int32, device=device)
    nibbles = torch.empty(experts, tiles, steps, 32, 4, dtype=torch.int32, device=device)
    # Kernels load two steps ahead, so there is memory behind the last one.
    behind = torch.zeros((experts * tiles * steps + 2) * 4, dtype=torch.int64, device=device)
    marks = behind[:-8].view(experts, tiles, steps, 4)
    records, first = [], 0
    for expert in range(experts):
        byte = scales[expert].view(tiles, steps, 32, 4, 4, 2)  # place, lane, quarter, group
        base = _bases(byte)
        code = byte.to(torch.int16) - base[:, None, :, None, :, None]
        outside = ((code < 0) | (code >= WINDOW)).flatten(-2).any(-1)  # [tile, step, place, lane]
        code = code.masked_fill(outside[..., None, None], 0).to(torch.uint8)
        nibbles[expert] = (code[..., 0] | code[..., 1] << 4).view(torch.int32).squeeze(-1)
        bases[expert] = base.to(torch.uint8).view(torch.int32).squeeze(-1)
        lanes = outside.view(tiles, steps, 4, 32)
        count = lanes.sum(-1)
        before = count.flatten().cumsum(0).view(count.shape) - count + first
        marks[expert] = before << 32 | (lanes.long() << _LANES.to(device)).sum(-1)
        records.append(byte.reshape(tiles, steps, 32, 4, 8)[outside].view(torch.int32))
        first += records[-1].shape[0]
    # Never empty, so that there is an address.
    found = torch.cat([*records, torch.zeros(1, 2, dtype=torch.int32, device=device)])
    return ResidentScales((experts, rows, groups), nibbles, bases, marks, found)


def expand(compressed: ResidentScales, experts: slice = slice(None)) -> Tensor:
    """uint8 [experts, rows, groups] in tiles, as `compress` was given them. The host looks at values."""
    nibbles, marks = compressed.nibbles[experts], compressed.marks[experts]
    count, tiles, steps = nibbles.shape[:3]
    code = nibbles.unsqueeze(-1).view(torch.uint8)
    byte = torch.stack([code & 15, code >> 4], -1)
    base = compressed.bases[experts].unsqueeze(-1).view(torch.uint8).view(count, tiles, 1, 32, 1, 4, 1)
    byte = (byte + base).view(count, tiles, steps, 4, 32, 8)
    lanes = (marks.unsqueeze(-1) >> _LANES.to(marks.device) & 1).bool()
    number = (marks >> 32).unsqueeze(-1) + lanes.long().cumsum(-1) - 1
    byte[lanes] = compressed.records[number[lanes]].view(torch.uint8)
    return byte.view(count, *compressed.shape[1:])


def _bases(byte: Tensor) -> Tensor:
    """int16 [tile, place, quarter]: where the window that holds most scales of a row begins, the lowest."""
    tiles, steps, *_ = byte.shape
    rows = byte.permute(0, 2, 4, 1, 3, 5).reshape(tiles * 32 * 4, steps * 8)
    counts = torch.zeros(rows.shape[0], 128, dtype=torch.int32, device=byte.device)
    counts.scatter_add_(1, rows.long(), torch.ones_like(rows, dtype=torch.int32))
    total = torch.nn.functional.pad(counts.cumsum(1, dtype=torch.int32), (1, 0))
    best = (total[:, WINDOW:] - total[:, :-WINDOW]).argmax(1)
    return best.to(torch.int16).view(tiles, 32, 4)
