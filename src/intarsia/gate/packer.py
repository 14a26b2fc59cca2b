"""The second packer: cuts whole matrices by the documented share and stacks them, row by row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from intarsia.families.glm5_next.runtime import RuntimeModule
from intarsia.gate import codecs
from intarsia.gate.codecs import SIDE, Floats
from intarsia.gate.reader import RawReader
from intarsia.gate.shares import COLUMNS, ROWS, Part, part_of

SCALE_NAMES = ("weight_scale", "weight_scale_inv", "scale")
SLAB = ("nvfp4_csf_fixed", "nvfp4_csf_exceptions")
BLOCK = ("csf_base", "csf_codes", "csf_escape_count", "csf_escape_position", "csf_escape_value")


@dataclass(frozen=True, slots=True)
class Matrix:
    """One stored matrix: its format, shape, rows of element bytes, scale rows, and what else it has."""

    format: str
    codec: str
    shape: tuple[int, ...]
    elements: list[bytes]
    scale_name: str = ""
    scales: list[bytes] = field(default_factory=list)
    scalars: Mapping[str, bytes] = field(default_factory=dict)


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
        return self._form(module.sources[0]) if module.matrix else ("plain", "")

    def pack(self, module: RuntimeModule, rank: int, ranks: int) -> Packed:
        """The weight as the rank should hold it."""
        part = self.part(module, rank, ranks)
        matrices = [self._matrix(name, module.matrix) for name in module.sources]
        cuts = [_cut(matrix, part) for matrix in matrices]
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

    def _form(self, name: str) -> tuple[str, str]:
        names = self._reader.names
        dtype, _ = self._reader.form(f"{name}.weight")
        scale = next((item for item in SCALE_NAMES if f"{name}.{item}" in names), "")
        if dtype == "U8":
            codec = ""
            if f"{name}.weight_scale.{SLAB[0]}" in names:
                codec = "nvfp4_slab"
            elif f"{name}.weight_scale.{BLOCK[0]}" in names:
                codec = "csf_32x2_v1"
            return "NVFP4", codec
        if dtype == "F8_E4M3":
            if not scale:
                raise ValueError(f"{name}: FP8 without a scale")
            kind, shape = self._reader.form(f"{name}.{scale}")
            if kind in ("U8", "F8_E8M0"):
                return "MXFP8", ""
            if len(shape) in (2, 4) and kind in ("F32", "BF16"):
                return "FP8_PB_WO", ""
            raise ValueError(f"{name}: FP8 under a scale of {kind} {list(shape)}, which the gate cannot read")
        return dtype, ""

    def _matrix(self, name: str, matrix: bool) -> Matrix:
        if not matrix:
            raw = self._reader.read(name)
            return Matrix(raw.dtype, "", raw.shape, _split(raw.data, raw.shape[0] if raw.shape else 1))
        kind, codec = self._form(name)
        raw = self._reader.read(f"{name}.weight")
        rows = raw.shape[0]
        elements = _split(raw.data, rows)
        if kind in ("BF16", "F16", "F32"):
            return Matrix(kind, "", raw.shape, elements)
        columns = raw.shape[1] * (2 if kind == "NVFP4" else 1)
        scale_name = next((s for s in SCALE_NAMES if f"{name}.{s}" in self._reader.names), "weight_scale")
        scales = self._scales(name, scale_name, codec, kind, rows, columns)
        scalars = {}
        for suffix in ("weight_scale_2", "input_scale"):
            if f"{name}.{suffix}" in self._reader.names:
                scalars[suffix] = self._reader.read(f"{name}.{suffix}").data
        return Matrix(kind, codec, (rows, columns), elements, scale_name, scales, scalars)

    def _scales(
        self, name: str, scale_name: str, codec: str, kind: str, rows: int, columns: int
    ) -> list[bytes]:
        def component(suffix: str) -> bytes:
            return self._reader.read(f"{name}.weight_scale.{suffix}").data

        if codec == "nvfp4_slab":
            fixed, exceptions = map(component, SLAB)
            scales = codecs.slab_scales(fixed, exceptions, rows, columns // 16)
            return _split(bytes(scales), rows)
        if codec:
            base, codes, counts, positions, escapes = map(component, BLOCK)
            scales = codecs.block_scales(base, codes, counts, positions, escapes, rows, columns // 16)
            return _split(bytes(scales), rows)
        raw = self._reader.read(f"{name}.{scale_name}")
        return _split(raw.data, -(-rows // SIDE) if kind == "FP8_PB_WO" else rows)


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
    if matrix.format == "FP8_PB_WO":
        values, scales = _block_values(matrix, elements, r0, c0, c1)
        origin = r0 % SIDE, c0 % SIDE
    else:
        scales = [_columns(row, c0, c1, columns) if cut else row for row in matrix.scales[r0:r1]]
        values, origin = _row_values(matrix, elements, scales), (0, 0)
    tensors[matrix.scale_name] = b"".join(scales)
    tensors.update(matrix.scalars)
    return _Cut(matrix.format, matrix.codec, shape, tensors, origin, np.array(values))


def _row_values(matrix: Matrix, elements: Sequence[bytes], scales: Sequence[bytes]) -> list[Floats]:
    if matrix.format == "MXFP8":
        return [codecs.mxfp8_row(row, scale) for row, scale in zip(elements, scales, strict=True)]
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


def _split(data: bytes, rows: int) -> list[bytes]:
    size = len(data) // rows
    return [data[row * size : (row + 1) * size] for row in range(rows)]
