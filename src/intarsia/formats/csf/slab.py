"""The slab codecs: 16 rows a slab, one base a row, a code of k bits a scale, and a list of exceptions.

A scale byte is base + code, unless an exception replaces it. `fixed` (uint8) holds per slab 16 bases and
then 16 rows of codes, low bits first. `exceptions` (uint32) holds value << 24 | position, increasing in
position = row * columns + column. The NVFP4 codec has k = 4 and even columns; the MXFP4 codec has k = 1, any
columns, and unused bits of zero. Rows are a multiple of 16, and there are at most 2^24 scales.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from intarsia.core.errors import Violation
from intarsia.formats.csf import common

SLAB = 16
LIMIT = 1 << 24
_GATHER = 0x0102040810204080
"""Multiplies eight bytes of 0 or 1 into their top byte, the first byte in its lowest bit."""


@dataclass(frozen=True, slots=True)
class _Parts:
    base: Tensor  # uint8 [R / 16, 16]
    codes: Tensor  # uint8 [R / 16, 16, code bytes of a row]
    position: Tensor  # int32 [m]
    value: Tensor  # uint8 [m]


@dataclass(frozen=True, slots=True)
class Slab:
    """One slab codec: its name, the names of its two components, and the bits of a code."""

    name: str
    fixed: str
    exceptions: str
    bits: int

    @property
    def components(self) -> tuple[str, ...]:
        return self.fixed, self.exceptions

    @property
    def highest_base(self) -> int:
        return 256 - (1 << self.bits)

    @property
    def column_step(self) -> int:
        """What the columns of a matrix, and of a cut, are a multiple of."""
        return 2 if self.bits == 4 else 1

    def code_bytes(self, columns: int) -> int:
        """Code bytes of one row."""
        return -(-columns * self.bits // 8)

    def require_matrix(self, rows: int, columns: int) -> None:
        """Raises CsfError unless the codec can hold a matrix of that shape."""
        if rows <= 0 or rows % SLAB:
            raise common.no_matrix(self.name, f"{rows} rows", f"a multiple of {SLAB}")
        if columns <= 0 or columns % self.column_step:
            raise common.no_matrix(self.name, f"{columns} columns", f"a multiple of {self.column_step}")
        if rows * columns > LIMIT:
            raise common.no_matrix(self.name, f"{rows} x {columns} scales", f"at most {LIMIT}")

    def encode(self, scales: Tensor) -> dict[str, Tensor]:
        """The canonical streams of a contiguous matrix uint8 [R, C]."""
        rows, columns = scales.shape
        self.require_matrix(rows, columns)
        base = common.window_bases(scales, 1 << self.bits)
        codes = scales - base.unsqueeze(1)
        position = torch.nonzero((codes >> self.bits).view(-1)).squeeze(1)
        codes.view(-1).index_fill_(0, position, 0)
        words = (scales.view(-1)[position].long() << 24) | position
        slabs = torch.cat([base.view(-1, SLAB), self._pack(codes).view(rows // SLAB, -1)], dim=1)
        return {self.fixed: slabs, self.exceptions: words.to(torch.uint32)}

    def _pack(self, codes: Tensor) -> Tensor:
        """Code bytes [rows, B] of codes [rows, C]."""
        if self.bits == 4:
            return common.pack_nibbles(codes)
        padded = torch.nn.functional.pad(codes, (0, -codes.shape[1] % 8)).view(torch.int64)
        return (padded.mul_(_GATHER) >> 56).to(torch.uint8)

    def _shapes(self, components: Mapping[str, Tensor], rows: int, columns: int) -> list[Violation]:
        """Every component that is missing, extra, or of another dtype or shape; raises CsfError for
        the matrix.
        """
        self.require_matrix(rows, columns)
        found = common.component_set(components, self.components)
        if found:
            return found
        fixed, words = components[self.fixed], components[self.exceptions]
        count, size = rows // SLAB, SLAB * (1 + self.code_bytes(columns))
        found = common.dtype(self.fixed, fixed, torch.uint8)
        found += common.shape(self.fixed, fixed, (count, size), (count * size,))
        found += common.dtype(self.exceptions, words, torch.uint32)
        if words.ndim != 1 or words.shape[0] > rows * columns:
            expected = f"one dimension, at most {rows * columns} words"
            found.append(Violation("csf-shape", self.exceptions, f"shape {list(words.shape)}", expected))
        return found

    def _split(self, components: Mapping[str, Tensor], rows: int) -> _Parts:
        slabs = components[self.fixed].reshape(rows // SLAB, -1)
        words = components[self.exceptions].contiguous().view(torch.int32)
        codes = slabs[:, SLAB:].unflatten(1, (SLAB, -1))  # type: ignore[no-untyped-call]
        return _Parts(slabs[:, :SLAB], codes, words & 0xFFFFFF, (words >> 24).to(torch.uint8))

    def _values(self, parts: _Parts, rows: int, columns: int) -> list[Violation]:
        """Every rule that the contents of well-shaped components break."""
        found = common.at_most(self.fixed, "a base of", parts.base, self.highest_base)
        used = columns * self.bits % 8
        if used and bool((parts.codes[:, :, -1] >> used).any()):
            found.append(Violation("csf-tail", self.fixed, "set bits after the last column", "zeros"))
        position = parts.position
        if position.numel():
            if bool((position[1:] <= position[:-1]).any()):
                expected = "each position above the one before"
                found.append(Violation("csf-order", self.exceptions, "positions out of order", expected))
            last = int(position.max())
            if last >= rows * columns:
                expected = f"positions below {rows * columns}"
                found.append(Violation("csf-range", self.exceptions, f"position {last}", expected))
        return found

    def problems(self, components: Mapping[str, Tensor], rows: int, columns: int) -> list[Violation]:
        """Every rule that the components break. Raises CsfError when the codec cannot hold such a matrix."""
        found = self._shapes(components, rows, columns)
        return found or self._values(self._split(components, rows), rows, columns)

    def _checked(self, components: Mapping[str, Tensor], rows: int, columns: int) -> _Parts:
        common.raise_first(self.name, self._shapes(components, rows, columns))
        parts = self._split(components, rows)
        common.raise_first(self.name, self._values(parts, rows, columns))
        return parts

    def require_shapes(self, components: Mapping[str, Tensor], rows: int, columns: int) -> None:
        """Raises CsfError unless the components have the dtypes and shapes of such a matrix; reads no
        values.
        """
        common.raise_first(self.name, self._shapes(components, rows, columns))

    def decode_into(self, components: Mapping[str, Tensor], out: Tensor) -> None:
        """Writes the scale bytes into the contiguous `out` uint8 [R, C]."""
        rows, columns = out.shape
        parts = self._checked(components, rows, columns)
        base = parts.base.unsqueeze(-1)
        if self.bits == 4:
            out.view(torch.int16).view(parts.codes.shape).copy_(common.add_nibbles(parts.codes, base))
        else:
            ones = 0x0101010101010101
            sums = _spread_bits(parts.codes).add_(base.long().mul_(ones))
            out.view(parts.codes.shape[0], SLAB, columns).copy_(sums.view(torch.uint8)[..., :columns])
        out.view(-1).scatter_(0, parts.position.long(), parts.value)

    def cut(
        self, components: Mapping[str, Tensor], size: tuple[int, int], rows: range, columns: range
    ) -> dict[str, Tensor]:
        """The streams of a part, without decoding: whole slabs of rows. The bases are kept."""
        parts = self._checked(components, *size)
        common.require_steps(self.name, rows, SLAB, columns, self.column_step)
        slabs = slice(rows.start // SLAB, rows.stop // SLAB)
        if self.bits == 4:
            codes = parts.codes[slabs, :, columns.start // 2 : columns.stop // 2]
        else:
            bits = _spread_bits(parts.codes[slabs]).view(torch.uint8)[..., columns.start : columns.stop]
            codes = self._pack(bits.reshape(len(rows), len(columns)))
        row = torch.div(parts.position, size[1], rounding_mode="floor")
        column = parts.position - row * size[1]
        keep = (row >= rows.start) & (row < rows.stop) & (column >= columns.start) & (column < columns.stop)
        moved = (row[keep] - rows.start).long() * len(columns) + (column[keep] - columns.start)
        words = (parts.value[keep].long() << 24) | moved
        fixed = torch.cat([parts.base[slabs], codes.reshape(len(rows) // SLAB, -1)], dim=1)
        return {self.fixed: fixed, self.exceptions: words.to(torch.uint32)}


@lru_cache(maxsize=64)
def _bit_bytes(device: torch.device) -> Tensor:
    """For every byte its eight bits as eight bytes of 0 or 1, in one int64 [256]."""
    shifts = torch.arange(8, dtype=torch.uint8)
    bits = (torch.arange(256, dtype=torch.uint8).unsqueeze(1) >> shifts) & 1
    return bits.contiguous().view(torch.int64).view(-1).to(device)


def _spread_bits(codes: Tensor) -> Tensor:
    """Eight bytes of 0 or 1, as one int64, of every code byte."""
    return torch.index_select(_bit_bytes(codes.device), 0, codes.reshape(-1).int()).view(codes.shape)


NVFP4_SLAB = Slab("nvfp4_slab", "nvfp4_csf_fixed", "nvfp4_csf_exceptions", 4)
MXFP4_SLAB = Slab("mxfp4_slab", "mxfp4_csf_fixed", "mxfp4_csf_exceptions", 1)
