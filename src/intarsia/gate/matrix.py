"""One stored matrix, read whole: its format by the names and types of its tensors, and its rows as bytes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from intarsia.gate import codecs
from intarsia.gate.codecs import SIDE
from intarsia.gate.reader import RawReader

SCALE_NAMES = ("weight_scale", "weight_scale_inv", "scale")
SLAB = ("nvfp4_csf_fixed", "nvfp4_csf_exceptions")
BLOCK = ("csf_base", "csf_codes", "csf_escape_count", "csf_escape_position", "csf_escape_value")
PLAIN = ("BF16", "F16", "F32")
FP4 = ("NVFP4", "MXFP4")
ROW_SCALED = "FP8_PER_CHANNEL_PER_TOKEN"


@dataclass(frozen=True, slots=True)
class Matrix:
    """One stored matrix: its format, shape, rows of element bytes, scale rows, and what else it has.

    `scalars` are the numbers that belong to all of it: every share has them.
    """

    format: str
    codec: str
    shape: tuple[int, ...]
    elements: list[bytes]
    scale_name: str = ""
    scales: list[bytes] = field(default_factory=list)
    scalars: Mapping[str, bytes] = field(default_factory=dict)


def form_of(reader: RawReader, name: str) -> tuple[str, str]:
    """Format and scale codec of a module. Raises ValueError for a form that the gate cannot read."""
    names = reader.names
    dtype, shape = reader.form(f"{name}.weight")
    scale = next((item for item in SCALE_NAMES if f"{name}.{item}" in names), "")
    if dtype == "U8":
        if f"{name}.weight_scale.{SLAB[0]}" in names:
            return "NVFP4", "nvfp4_slab"
        if f"{name}.weight_scale.{BLOCK[0]}" in names:
            return "NVFP4", "csf_32x2_v1"
        return ("NVFP4" if f"{name}.weight_scale_2" in names else "MXFP4"), ""
    if dtype != "F8_E4M3":
        return dtype, ""
    if not scale:
        raise ValueError(f"{name}: FP8 without a scale")
    kind, sizes = reader.form(f"{name}.{scale}")
    if kind in ("U8", "F8_E8M0"):
        return "MXFP8", ""
    if kind == "F32" and sizes in ((), (1,)):
        return "FP8", ""
    if kind == "F32" and sizes in ((shape[0],), (shape[0], 1)):
        return ROW_SCALED, ""
    if len(sizes) in (2, 4) and kind in ("F32", "BF16"):
        return "FP8_PB_WO", ""
    raise ValueError(f"{name}: FP8 under a scale of {kind} {list(sizes)}, which the gate cannot read")


def read_matrix(reader: RawReader, name: str) -> Matrix:
    """A module's matrix."""
    kind, codec = form_of(reader, name)
    raw = reader.read(f"{name}.weight")
    rows = raw.shape[0]
    elements = split(raw.data, rows)
    if kind in PLAIN:
        return Matrix(kind, "", raw.shape, elements)
    columns = raw.shape[1] * (2 if kind in FP4 else 1)
    scale_name = next((s for s in SCALE_NAMES if f"{name}.{s}" in reader.names), "weight_scale")
    scalars = {
        suffix: reader.read(f"{name}.{suffix}").data
        for suffix in ("weight_scale_2", "input_scale")
        if f"{name}.{suffix}" in reader.names
    }
    if kind == "FP8":
        scalars = {scale_name: reader.read(f"{name}.{scale_name}").data, **scalars}
        return Matrix(kind, codec, (rows, columns), elements, scale_name, [], scalars)
    scales = _scales(reader, name, scale_name, codec, kind, rows, columns)
    return Matrix(kind, codec, (rows, columns), elements, scale_name, scales, scalars)


def read_plain(reader: RawReader, name: str) -> Matrix:
    """A tensor that belongs to no module's matrix."""
    raw = reader.read(name)
    return Matrix(raw.dtype, "", raw.shape, split(raw.data, raw.shape[0] if raw.shape else 1))


def _scales(
    reader: RawReader, name: str, scale_name: str, codec: str, kind: str, rows: int, columns: int
) -> list[bytes]:
    def component(suffix: str) -> bytes:
        return reader.read(f"{name}.weight_scale.{suffix}").data

    if codec == "nvfp4_slab":
        fixed, exceptions = map(component, SLAB)
        return split(bytes(codecs.slab_scales(fixed, exceptions, rows, columns // 16)), rows)
    if codec:
        base, codes, counts, positions, escapes = map(component, BLOCK)
        expanded = codecs.block_scales(base, codes, counts, positions, escapes, rows, columns // 16)
        return split(bytes(expanded), rows)
    data = reader.read(f"{name}.{scale_name}").data
    return split(data, -(-rows // SIDE) if kind == "FP8_PB_WO" else rows)


def split(data: bytes, rows: int) -> list[bytes]:
    """Equal parts of some bytes, one a row."""
    size = len(data) // rows
    return [data[row * size : (row + 1) * size] for row in range(rows)]
