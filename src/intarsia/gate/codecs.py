"""Number formats read once more, one number at a time, with nothing but arithmetic on bits."""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
SIDE = 128


def e4m3(byte: int) -> float:
    """1 sign bit, 4 exponent bits of bias 7, 3 bits of fraction; no infinity, all ones is NaN."""
    sign = -1.0 if byte & 0x80 else 1.0
    exponent, fraction = byte >> 3 & 0xF, byte & 0x7
    if exponent == 0xF and fraction == 0x7:
        return math.nan
    if exponent == 0:
        return sign * math.ldexp(fraction, -9)
    return sign * math.ldexp(8 + fraction, exponent - 10)


def e2m1(nibble: int) -> float:
    """1 sign bit, 2 exponent bits of bias 1, 1 bit of fraction."""
    sign = -1.0 if nibble & 0x8 else 1.0
    exponent, fraction = nibble >> 1 & 0x3, nibble & 0x1
    if exponent == 0:
        return sign * 0.5 * fraction
    return sign * math.ldexp(2 + fraction, exponent - 2)


def e8m0(byte: int) -> float:
    """A power of two of bias 127; all ones is NaN."""
    return math.nan if byte == 0xFF else math.ldexp(1.0, byte - 127)


def _table(number: Callable[[int], float], count: int) -> Floats:
    return np.array([number(code) for code in range(count)], dtype=np.float32)


E4M3, E2M1, E8M0 = _table(e4m3, 256), _table(e2m1, 16), _table(e8m0, 256)


def nvfp4_row(codes: bytes, scales: bytes, global_scale: np.float32) -> Floats:
    """One row: two codes a byte, the even column in the low bits; a scale each 16 columns."""
    row = np.empty(2 * len(codes), dtype=np.float32)
    packed = np.frombuffer(codes, dtype=np.uint8)
    row[0::2], row[1::2] = E2M1[packed & 0xF], E2M1[packed >> 4]
    for group, scale in enumerate(scales):
        row[16 * group : 16 * group + 16] *= E4M3[scale] * global_scale
    return row


def mxfp8_row(codes: bytes, scales: bytes) -> Floats:
    """One row: a code a byte, a power of two each 32 columns."""
    row = E4M3[np.frombuffer(codes, dtype=np.uint8)]
    for group, scale in enumerate(scales):
        row[32 * group : 32 * group + 32] *= E8M0[scale]
    return row


def mxfp4_row(codes: bytes, scales: bytes) -> Floats:
    """One row: two codes a byte, the even column in the low bits; a power of two each 32 columns."""
    row = np.empty(2 * len(codes), dtype=np.float32)
    packed = np.frombuffer(codes, dtype=np.uint8)
    row[0::2], row[1::2] = E2M1[packed & 0xF], E2M1[packed >> 4]
    for group, scale in enumerate(scales):
        row[32 * group : 32 * group + 32] *= E8M0[scale]
    return row


def scaled_row(codes: bytes, scale: bytes) -> Floats:
    """One row of E4M3 codes under one float32 number."""
    row: Floats = E4M3[np.frombuffer(codes, dtype=np.uint8)] * np.frombuffer(scale, dtype="<f4")[0]
    return row


def block_row(codes: bytes, scales: Floats, left: int) -> Floats:
    """One row under the scales of its band of blocks, beginning `left` columns inside the first."""
    row = E4M3[np.frombuffer(codes, dtype=np.uint8)]
    column = 0
    for scale in scales:
        end = min(len(row), column + SIDE - (left + column) % SIDE)
        row[column:end] *= scale
        column = end
    return row


def plain_row(data: bytes, dtype: str) -> Floats:
    """One row of BF16, F16 or F32 numbers."""
    if dtype == "BF16":
        return (np.frombuffer(data, dtype="<u2").astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(data, dtype="<f2" if dtype == "F16" else "<f4").astype(np.float32)


def slab_scales(fixed: bytes, exceptions: bytes, rows: int, columns: int) -> bytearray:
    """Scale bytes of 16-row slabs: 16 bases, then 16 rows of 4-bit codes, low bits first; then exceptions."""
    out = bytearray()
    size = 16 + 16 * (columns // 2)
    for row in range(rows):
        slab = row // 16 * size
        base = fixed[slab + row % 16]
        first = slab + 16 + row % 16 * (columns // 2)
        for byte in fixed[first : first + columns // 2]:
            out.append(base + (byte & 0xF))
            out.append(base + (byte >> 4))
    for at in range(0, len(exceptions), 4):
        word = int.from_bytes(exceptions[at : at + 4], "little")
        out[word & 0xFFFFFF] = word >> 24
    return out


def block_scales(
    base: bytes, codes: bytes, counts: bytes, positions: bytes, values: bytes, rows: int, columns: int
) -> bytearray:
    """Scale bytes of blocks of 32 rows x 2 columns: a base, 32 bytes of two codes, and escapes."""
    out = bytearray(rows * columns)
    escape = 0
    for block in range(len(base)):
        top, left = block // (columns // 2) * 32, block % (columns // 2) * 2
        for row in range(32):
            at, code = (top + row) * columns + left, codes[32 * block + row]
            out[at], out[at + 1] = base[block] + (code & 0xF), base[block] + (code >> 4)
        for _ in range(counts[block]):
            row, column = divmod(positions[escape], 2)
            out[(top + row) * columns + left + column] = values[escape]
            escape += 1
    return out
