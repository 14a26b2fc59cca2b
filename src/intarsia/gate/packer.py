"""The second packer: cuts whole matrices by the documented share and stacks them, row by row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from intarsia.families.glm5_next.runtime import RuntimeModule
from intarsia.gate import codecs
from intarsia.gate.codecs import SIDE, Floats
from intarsia.gate.matrix import ROW_SCALED, Matrix, form_of, read_matrix, read_plain
from intarsia.gate.reader import RawReader
from intarsia.gate.shares import COLUMNS, ROWS, Part, part_of

VISION = "model.visual."


@dataclass(frozen=True, slots=True)
class Packed:
    """A rank's weight as it should be: bytes by suffix, and where its parts begin inside their blocks."""

    format: str
    codec: str
    part: Part
    shape: tuple[int, ...]
    tensors: Mapping[str, bytes]
    origin: tuple[int, int]
    values: Floats


class Packer:
    """Packs run-time weights of a checkpoint for any rank."""

    def __init__(self, reader: RawReader, config: Mapping[str, Any]) -> None:
        self._reader = reader
        self._text: Mapping[str, Any] = config.get("text_config", config)
        self._layers = dict(enumerate(self._text["layer_types"]))

    def part(self, module: RuntimeModule, rank: int, ranks: int) -> Part:
        """What a rank holds of each source of a weight."""
        return part_of(module.sources[0], self._text, self._layers, rank, ranks)

    def form(self, module: RuntimeModule) -> tuple[str, str]:
        """Format and scale codec of a weight, by the names and types of its tensors."""
        return form_of(self._reader, module.sources[0]) if module.matrix else ("plain", "")

    def pack(self, module: RuntimeModule, rank: int, ranks: int) -> Packed:
        """The weight as the rank should hold it."""
        part = self.part(module, rank, ranks)
        read = read_matrix if module.matrix else read_plain
        cuts = [_cut(read(self._reader, name), part) for name in module.sources]
        tensors: dict[str, bytearray] = {}
        values = []
        for cut in cuts:
            for suffix, data in cut.tensors.items():
                tensors.setdefault(suffix, bytearray()).extend(data)
            values.append(cut.values)
        first = cuts[0]
        flat = {suffix: bytes(data) for suffix, data in tensors.items()}
        stacked = np.concatenate(values) if values[0].ndim else np.array(values)
        return Packed(first.format, first.codec, part, (len(cuts), *first.shape), flat, first.origin, stacked)

    def unread(self) -> list[str]:
        """Tensors of the text network's files that no weight packed so far has taken."""
        left = self._reader.names - self._reader.taken
        return sorted(name for name in left if not name.startswith(VISION))


@dataclass(frozen=True, slots=True)
class _Cut:
    format: str
    codec: str
    shape: tuple[int, ...]
    tensors: dict[str, bytes]
    origin: tuple[int, int]
    values: Floats


def _cut(matrix: Matrix, part: Part) -> _Cut:
    rows, columns = matrix.shape[0] if matrix.shape else 1, matrix.shape[-1] if len(matrix.shape) > 1 else 1
    r0, r1 = (part.start, part.stop) if part.axis == ROWS else (0, rows)
    c0, c1 = (part.start, part.stop) if part.axis == COLUMNS else (0, columns)
    cut = part.axis == COLUMNS
    elements = [_columns(row, c0, c1, columns) if cut else row for row in matrix.elements[r0:r1]]
    shape = (r1 - r0, c1 - c0) if matrix.scale_name else (r1 - r0, *matrix.shape[1:-1], c1 - c0)
    if not matrix.scale_name:
        values = [codecs.plain_row(row, matrix.format) for row in elements]
        return _Cut(matrix.format, "", shape, {"weight": b"".join(elements)}, (0, 0), np.array(values))
    tensors = {"weight": b"".join(elements)}
    origin = (0, 0)
    if matrix.format == "FP8_PB_WO":
        values, scales = _block_values(matrix, elements, r0, c0, c1)
        origin = r0 % SIDE, c0 % SIDE
    elif matrix.format == ROW_SCALED:  # a row's number, whatever columns of it are held
        scales = matrix.scales[r0:r1]
        values = [codecs.scaled_row(row, scale) for row, scale in zip(elements, scales, strict=True)]
    else:
        scales = [_columns(row, c0, c1, columns) if cut else row for row in matrix.scales[r0:r1]]
        values = _row_values(matrix, elements, scales)
    if scales:
        tensors[matrix.scale_name] = b"".join(scales)
    tensors.update(matrix.scalars)
    return _Cut(matrix.format, matrix.codec, shape, tensors, origin, np.array(values))


def _row_values(matrix: Matrix, elements: Sequence[bytes], scales: Sequence[bytes]) -> list[Floats]:
    if matrix.format == "FP8":
        scale = matrix.scalars[matrix.scale_name]
        return [codecs.scaled_row(row, scale) for row in elements]
    if matrix.format in ("MXFP8", "MXFP4"):
        decode = codecs.mxfp8_row if matrix.format == "MXFP8" else codecs.mxfp4_row
        return [decode(row, scale) for row, scale in zip(elements, scales, strict=True)]
    global_scale = np.frombuffer(matrix.scalars["weight_scale_2"], dtype="<f4")[0]
    return [codecs.nvfp4_row(row, scale, global_scale) for row, scale in zip(elements, scales, strict=True)]


def _block_values(
    matrix: Matrix, elements: Sequence[bytes], r0: int, c0: int, c1: int
) -> tuple[list[Floats], list[bytes]]:
    """The decoded rows, and the scale rows and columns that the part touches."""
    blocks = -(-matrix.shape[1] // SIDE)
    size = len(matrix.scales[0]) // blocks
    first, last = c0 // SIDE, -(-c1 // SIDE)
    bands = [row[first * size : last * size] for row in matrix.scales]
    wide = "BF16" if size == 2 else "F32"
    numbers = [codecs.plain_row(band, wide) for band in bands]
    values = [
        codecs.block_row(row, numbers[(r0 + index) // SIDE], c0 % SIDE) for index, row in enumerate(elements)
    ]
    touched = range(r0 // SIDE, -(-(r0 + len(elements)) // SIDE))
    return values, [bands[band] for band in touched]


def _columns(row: bytes, start: int, stop: int, columns: int) -> bytes:
    """Columns of one row of elements or scales; several columns may share a byte or an entry."""
    return row[start * len(row) // columns : stop * len(row) // columns]
