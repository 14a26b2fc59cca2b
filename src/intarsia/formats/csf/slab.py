"""The slab codecs: 16 rows a slab, one base a row, a code of k bits a scale, and a list of exceptions.

A scale byte is base + code, unless an exception replaces it. `fixed` (uint8) holds per slab 16 bases and then
16 rows of codes, low bits first; `exceptions` (uint32) holds value << 24 | position, increasing in position =
row * columns + column. The NVFP4 codec has k = 4 (even columns), the MXFP4 codec k = 1 (any columns, unused
bits zero). R must be a multiple of 16 and R * C at most 2^24.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from intarsia.formats.csf.common import (
    refuse,
    require_components,
    require_tensor,
    spread_nibbles,
    window_bases,
)
from intarsia.formats.errors import CsfError, CutError

SLAB = 16
LIMIT = 1 << 24


@dataclass(frozen=True, slots=True)
class Slab:
    """One slab codec: its name, its component names and the number of bits of a code."""

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

    def code_bytes(self, columns: int) -> int:
        """Code bytes of one row."""
        return -(-columns * self.bits // 8)

    def require_matrix(self, rows: int, columns: int) -> None:
        """Raises CsfError unless the codec can hold a matrix of that shape."""
        if rows <= 0 or rows % SLAB:
            refuse(self.name, "", f"{rows} rows", f"a multiple of {SLAB}")
        if columns <= 0 or (self.bits == 4 and columns % 2):
            refuse(
                self.name, "", f"{columns} columns", "an even number" if self.bits == 4 else "at least one"
            )
        if rows * columns > LIMIT:
            refuse(self.name, "", f"{rows} x {columns} scales", f"at most {LIMIT}")

    def encode(self, scales: torch.Tensor) -> dict[str, torch.Tensor]:
        """The canonical streams of a matrix uint8 [R, C]."""
        rows, columns = scales.shape
        self.require_matrix(rows, columns)
        base = window_bases(scales, 1 << self.bits)
        offset = scales - base.unsqueeze(1)
        inside = offset < (1 << self.bits)
        codes = self._pack(torch.where(inside, offset, 0))
        slabs = torch.cat([base.view(-1, SLAB), codes.view(rows // SLAB, -1)], dim=1)
        position = torch.nonzero(~inside.view(-1)).squeeze(1)
        words = (scales.view(-1)[position].long() << 24) | position
        return {self.fixed: slabs, self.exceptions: words.to(torch.int64).to(torch.uint32)}

    def _pack(self, codes: torch.Tensor) -> torch.Tensor:
        per_byte = 8 // self.bits
        padded = torch.nn.functional.pad(codes, (0, -codes.shape[1] % per_byte))
        packed = padded[:, 0::per_byte].clone()
        for place in range(1, per_byte):
            packed |= padded[:, place::per_byte] << (place * self.bits)
        return packed

    def split(
        self, components: Mapping[str, torch.Tensor], rows: int, columns: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Bases [R / 16, 16], code bytes [R / 16, 16, B], exception positions (int32) and values (uint8), all
        checked.

        Raises CsfError naming the component.
        """
        self.require_matrix(rows, columns)
        require_components(self.name, components, self.components)
        fixed, words = components[self.fixed], components[self.exceptions]
        require_tensor(self.name, self.fixed, fixed, torch.uint8)
        require_tensor(self.name, self.exceptions, words, torch.uint32)
        slab_bytes = SLAB * (1 + self.code_bytes(columns))
        count = rows // SLAB
        if tuple(fixed.shape) not in ((count, slab_bytes), (count * slab_bytes,)):
            expected = (
                f"shape [{count}, {slab_bytes}] or [{count * slab_bytes}] for {rows} x {columns} scales"
            )
            refuse(self.name, self.fixed, f"shape {list(fixed.shape)}", expected)
        if words.ndim != 1 or words.shape[0] > rows * columns:
            expected = f"one dimension of at most {rows * columns} words"
            refuse(self.name, self.exceptions, f"shape {list(words.shape)}", expected)
        slabs = fixed.view(count, slab_bytes)
        base, codes = slabs[:, :SLAB], slabs[:, SLAB:].view(count, SLAB, -1)
        if int(base.max()) > self.highest_base:
            refuse(self.name, self.fixed, f"a base of {int(base.max())}", f"at most {self.highest_base}")
        used = columns * self.bits % 8
        if used and bool((codes[:, :, -1] >> used).any()):
            refuse(self.name, self.fixed, "set bits beyond the last column", "zeros")
        return base, codes, *self._exceptions(words, rows * columns)

    def _exceptions(self, words: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        signed = words.view(torch.int32)
        position = signed & 0xFFFFFF
        if position.numel():
            if bool((position[1:] <= position[:-1]).any()):
                refuse(
                    self.name,
                    self.exceptions,
                    "positions that do not increase",
                    "strictly increasing positions",
                )
            if int(position[-1]) >= size:
                refuse(self.name, self.exceptions, f"position {int(position[-1])}", f"positions below {size}")
        return position, (signed >> 24).to(torch.uint8)

    def decode_into(self, components: Mapping[str, torch.Tensor], out: torch.Tensor) -> None:
        """Writes the scale bytes into `out` [R, C] (uint8, contiguous)."""
        rows, columns = out.shape
        base, codes, position, value = self.split(components, rows, columns)
        if self.bits == 4:
            spread_nibbles(codes, base.unsqueeze(-1), out.view(torch.int16).view(codes.shape))
        else:
            shifts = torch.arange(8, dtype=torch.uint8, device=out.device)
            bits = (codes.unsqueeze(-1) >> shifts) & 1
            out.copy_((bits.flatten(-2)[..., :columns] + base.unsqueeze(-1)).view(rows, columns))
        out.view(-1)[position.long()] = value

    def cut(
        self, components: Mapping[str, torch.Tensor], shape: tuple[int, int], rows: range, columns: range
    ) -> dict[str, torch.Tensor]:
        """The streams of a part, without decoding: rows in whole slabs, columns even for k = 4. Bases are
        kept.
        """
        base, codes, position, value = self.split(components, *shape)
        if (
            rows.start % SLAB
            or rows.stop % SLAB
            or (self.bits == 4 and (columns.start % 2 or columns.stop % 2))
        ):
            raise CutError(
                f"cut of {self.name}",
                found=f"rows {rows.start}:{rows.stop}, columns {columns.start}:{columns.stop}",
                expected=f"rows in multiples of {SLAB}" + (", even columns" if self.bits == 4 else ""),
            )
        slabs = slice(rows.start // SLAB, rows.stop // SLAB)
        if self.bits == 4:
            kept = codes[slabs, :, columns.start // 2 : columns.stop // 2]
        else:
            shifts = torch.arange(8, dtype=torch.uint8, device=codes.device)
            bits = ((codes[slabs].unsqueeze(-1) >> shifts) & 1).flatten(-2)[..., columns.start : columns.stop]
            kept = self._pack(bits.reshape(len(rows), len(columns))).view(bits.shape[0], SLAB, -1)
        row = torch.div(position, shape[1], rounding_mode="floor")
        column = position - row * shape[1]
        keep = (row >= rows.start) & (row < rows.stop) & (column >= columns.start) & (column < columns.stop)
        moved = (row[keep] - rows.start) * len(columns) + (column[keep] - columns.start)
        words = (value[keep].long() << 24) | moved.long()
        fixed = torch.cat([base[slabs], kept.flatten(1)], dim=1)
        return {self.fixed: fixed, self.exceptions: words.to(torch.uint32)}


NVFP4_SLAB = Slab("nvfp4_slab", "nvfp4_csf_fixed", "nvfp4_csf_exceptions", 4)
MXFP4_SLAB = Slab("mxfp4_slab", "mxfp4_csf_fixed", "mxfp4_csf_exceptions", 1)

__all__ = ["LIMIT", "MXFP4_SLAB", "NVFP4_SLAB", "SLAB", "CsfError", "Slab"]
