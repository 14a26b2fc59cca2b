"""FP8_PB_WO: E4M3 elements under one scale for each block of 128 x 128.

    w = e4m3 * scale[row // 128, column // 128]

nvidia-modelopt stores float32 scales `weight_scale` [a, 1, b, 1]; DeepSeek's convention is `weight_scale_inv`
[a, b] in float32 or bfloat16. Both multiply. A cut keeps the scale of every block it touches, and remembers
in `origin` where inside its first block it starts.
"""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from intarsia.core.errors import Violation
from intarsia.formats import checks
from intarsia.formats.base import Format, TensorSpec, as_slice
from intarsia.formats.codes import chunk_elements, decode_e4m3_into, encode_e4m3_into, magnitude_bits
from intarsia.formats.errors import CutError, LayoutError
from intarsia.formats.fp8 import join_e4m3
from intarsia.formats.fp8_channel import scale_of
from intarsia.formats.sources import require_finite, source
from intarsia.formats.stored import Stored

SIDE = 128
SCALE_NAMES = ("weight_scale", "weight_scale_inv")


class Fp8Block(Format):
    """FP8 with a scale a 128 x 128 block. Edge blocks are smaller; the weight keeps its true shape."""

    name = "FP8_PB_WO"
    block = (SIDE, SIDE)

    def layout(self, shape: tuple[int, ...]) -> dict[str, TensorSpec]:
        *lead, rows, columns = shape
        return {
            "weight": TensorSpec(torch.float8_e4m3fn, shape),
            "weight_scale": TensorSpec(torch.float32, (*lead, -(-rows // SIDE), 1, -(-columns // SIDE), 1)),
        }

    def encode(self, weight: Tensor, *, amax: Tensor | float | None = None) -> Stored:
        whole = source(weight, self.name)
        specs = self.layout(tuple(whole.shape))
        elements = torch.empty(whole.shape, dtype=torch.float8_e4m3fn, device=whole.device)
        scale = torch.empty(specs["weight_scale"].shape, dtype=torch.float32, device=whole.device)
        rows, columns = whole.shape[-2:]
        grids = scale.view(-1, -(-rows // SIDE), -(-columns // SIDE))
        pairs = zip(whole.view(-1, rows, columns), elements.view(-1, rows, columns), grids, strict=True)
        for matrix, target, grid in pairs:
            for bands, part in _bands(0, rows, chunk_elements(whole.device) // columns):
                values = matrix[part].to(torch.float32, copy=True).view(len(bands), -1, columns)
                largest = _blocks_amax(values)
                require_finite(whole, largest, self.name)
                grid[as_slice(bands)] = scale_of(largest)
                values.div_(_by_column(grid[as_slice(bands)], columns, 0))
                encode_e4m3_into(values.view(-1, columns), target[part])
        return Stored(self.name, {"weight": elements, "weight_scale": scale}, tuple(whole.shape))

    def rename(self, stored: Stored, scale_name: str, *, flat: bool) -> Stored:
        """The same weight under the other convention: the scale's name, and [a, b] (flat) or [a, 1, b, 1]."""
        scale = stored[scale_name_of(stored)]
        lead = len(stored.shape) - 2
        if scale.ndim == lead + 4:
            scale = scale.squeeze(-1).squeeze(-2)
        if not flat:
            scale = scale.unsqueeze(-1).unsqueeze(-3)
        tensors = {"weight": stored["weight"], scale_name: scale}
        return self.stored(tensors, origin=stored.origin, row_parts=stored.row_parts)

    def _problems(self, tensors: Mapping[str, Tensor], origin: tuple[int, int]) -> list[Violation]:
        name = scale_name_of(tensors)
        found = checks.tensor_set(tensors, ("weight", name), ())
        if found:
            return found
        weight, scale = tensors["weight"], tensors[name]
        found = checks.dtype("weight", weight, torch.float8_e4m3fn) + checks.matrix("weight", weight)
        if found:
            return found
        *lead, rows, columns = weight.shape
        parts = getattr(tensors, "row_parts", 1)
        if rows % parts:
            return [Violation("shape", "weight", f"{rows} rows", f"{parts} equal parts")]
        down = parts * -(-(rows // parts + origin[0]) // SIDE)
        across = -(-(columns + origin[1]) // SIDE)
        found = checks.dtype(name, scale, torch.float32, torch.bfloat16)
        return found + checks.shape(name, scale, (*lead, down, across), (*lead, down, 1, across, 1))

    def _shape(self, tensors: Mapping[str, Tensor]) -> tuple[int, ...]:
        return tuple(tensors["weight"].shape)

    def _decode(self, stored: Stored, rows: slice, out: Tensor) -> None:
        size = stored.rows // stored.row_parts
        for part in range(rows.start // size, -(-rows.stop // size)):
            first, last = max(rows.start, part * size), min(rows.stop, (part + 1) * size)
            inside = slice(first - part * size, last - part * size)
            target = out[first - rows.start : last - rows.start]
            self._decode_part(_row_part(stored, part), inside, target)

    def _decode_part(self, stored: Stored, rows: slice, out: Tensor) -> None:
        scale = stored[scale_name_of(stored)]
        grid = scale.reshape(scale.shape[0], -1).float()
        decode_e4m3_into(stored["weight"][rows], out)
        top, left = stored.origin
        for bands, part in _bands(top + rows.start, top + rows.stop, len(out)):
            values = out[part.start - top - rows.start : part.stop - top - rows.start]
            values.view(len(bands), -1, out.shape[1]).mul_(
                _by_column(grid[as_slice(bands)], out.shape[1], left)
            )

    def _cut(self, stored: Stored, rows: range, columns: range) -> Stored:
        if stored.row_parts == 1:
            return self._cut_part(stored, rows, columns)
        size = stored.rows // stored.row_parts
        part = rows.start // size
        if rows.stop > (part + 1) * size:
            raise CutError(
                f"cut of {self.name}",
                found=f"rows {rows.start}:{rows.stop}",
                expected=f"rows inside one part of {size} rows, which has blocks of its own",
            )
        inside = range(rows.start - part * size, rows.stop - part * size)
        return self._cut_part(_row_part(stored, part), inside, columns)

    def _cut_part(self, stored: Stored, rows: range, columns: range) -> Stored:
        top, left = rows.start + stored.origin[0], columns.start + stored.origin[1]
        down = slice(top // SIDE, -(-(top + len(rows)) // SIDE))
        across = slice(left // SIDE, -(-(left + len(columns)) // SIDE))
        name, lead = scale_name_of(stored), stored.shape[:-2]
        scale = stored[name]
        tensors = {
            "weight": stored["weight"][..., as_slice(rows), as_slice(columns)],
            name: scale[..., down, :, across, :] if scale.ndim == len(lead) + 4 else scale[..., down, across],
        }
        return Stored(self.name, tensors, (*lead, len(rows), len(columns)), (top % SIDE, left % SIDE))

    def _join(self, parts: Sequence[Stored]) -> dict[str, Tensor]:
        name, lead = scale_name_of(parts[0]), len(parts[0].shape) - 2
        meet = not any((part.origin[0] + part.rows) % SIDE for part in parts[:-1])
        meet = meet and not any(part.origin[0] for part in parts[1:])
        alike = len({(part.origin, part.rows) for part in parts}) == 1
        if not (meet or alike):
            found = ", ".join(f"{part.rows} rows from {part.origin[0]}" for part in parts)
            expected = f"parts that meet between blocks of {SIDE} rows, or that are cut alike"
            raise LayoutError(self.name, [Violation("join", name, found, expected)])
        return {"weight": join_e4m3(parts), name: torch.cat([part[name] for part in parts], dim=lead)}

    def row_parts(self, rows: Sequence[int], origin: int = 0) -> int:
        alike = len(set(rows)) == 1
        return len(rows) if alike and (origin or rows[0] % SIDE) else 1

    def _bad_values(self, stored: Stored, elements: bool) -> list[Violation]:
        name = scale_name_of(stored)
        found = checks.positive(name, stored[name])
        return found + (checks.e4m3_elements("weight", stored["weight"]) if elements else [])


def scale_name_of(tensors: Mapping[str, Tensor]) -> str:
    """The name under which the block scales are stored."""
    return next((name for name in SCALE_NAMES if name in tensors), SCALE_NAMES[0])


def _row_part(stored: Stored, part: int) -> Stored:
    """One of the row parts that have blocks of their own, as views."""
    if stored.row_parts == 1:
        return stored
    name, lead = scale_name_of(stored), len(stored.shape) - 2
    size, bands = stored.rows // stored.row_parts, stored[name].shape[lead] // stored.row_parts
    tensors = {
        "weight": stored["weight"].narrow(lead, part * size, size),
        name: stored[name].narrow(lead, part * bands, bands),
    }
    return Stored(stored.format, tensors, (*stored.shape[:-2], size, stored.columns), stored.origin)


def _bands(start: int, stop: int, most: int) -> Iterator[tuple[range, slice]]:
    """The rows start .. stop in pieces: whole bands of 128 rows, of up to `most` rows, and the parts of bands
    at the ends.

    Each piece comes with the indices of its bands.
    """
    while start < stop:
        count = min(stop - start, max(SIDE, most)) // SIDE
        if start % SIDE or not count:
            end, count = min(stop, start - start % SIDE + SIDE), 1
        else:
            end = start + count * SIDE
        yield range(start // SIDE, start // SIDE + count), slice(start, end)
        start = end


def _blocks_amax(values: Tensor) -> Tensor:
    """The largest magnitude [bands, blocks] of blocks of 128 columns of [bands, rows, columns]; the
    last may be narrower.
    """
    bits = magnitude_bits(values).amax(dim=1)
    padded = torch.nn.functional.pad(bits, (0, -bits.shape[1] % SIDE))
    return padded.view(bits.shape[0], -1, SIDE).amax(dim=2).view(torch.float32)


def _by_column(scales: Tensor, columns: int, left: int) -> Tensor:
    """The scales [bands, blocks] of every column, [bands, 1, columns], of a weight `left` columns
    inside its first block.
    """
    return scales.repeat_interleave(SIDE, dim=1)[:, left : left + columns].unsqueeze(1)
