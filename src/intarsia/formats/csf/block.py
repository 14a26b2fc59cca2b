"""The block codec `csf_32x2_v1`: blocks of 32 rows x 2 columns, one base a block, 4-bit codes and escapes.

The layout is this project's own definition. Only the name, that it is lossless, and that it has five
components a matrix are public; it has not been compared with a real file. A component set that differs is
refused.
"""

from collections.abc import Mapping

import torch

from intarsia.formats.csf.common import (
    refuse,
    require_components,
    require_tensor,
    spread_nibbles,
    window_bases,
)
from intarsia.formats.errors import CutError

ROWS, COLUMNS = 32, 2
WIDTH = 16
HIGHEST_BASE = 256 - WIDTH
HIGHEST_COUNT = ROWS * COLUMNS - 1


class Block:
    """Base [R/32, C/2], codes [R/32, C/2, 32], escape counts [R/32, C/2], and two streams of escapes in block
    order.
    """

    name = "csf_32x2_v1"
    components = ("csf_base", "csf_codes", "csf_escape_count", "csf_escape_position", "csf_escape_value")

    def require_matrix(self, rows: int, columns: int) -> None:
        """Raises CsfError unless the codec can hold a matrix of that shape."""
        if rows <= 0 or rows % ROWS:
            refuse(self.name, "", f"{rows} rows", f"a multiple of {ROWS}")
        if columns <= 0 or columns % COLUMNS:
            refuse(self.name, "", f"{columns} columns", "an even number")

    def encode(self, scales: torch.Tensor) -> dict[str, torch.Tensor]:
        """The canonical components of a matrix uint8 [R, C]."""
        rows, columns = scales.shape
        self.require_matrix(rows, columns)
        grid = rows // ROWS, columns // COLUMNS
        blocks = scales.view(grid[0], ROWS, grid[1], COLUMNS).transpose(1, 2).reshape(-1, ROWS * COLUMNS)
        base = window_bases(blocks, WIDTH)
        offset = blocks - base.unsqueeze(1)
        outside = offset >= WIDTH
        codes = torch.where(outside, 0, offset)
        packed = codes[:, 0::2] | (codes[:, 1::2] << 4)
        spot = torch.nonzero(outside.view(-1)).squeeze(1)
        return {
            "csf_base": base.view(grid),
            "csf_codes": packed.view(*grid, ROWS),
            "csf_escape_count": outside.sum(dim=1, dtype=torch.uint8).view(grid),
            "csf_escape_position": (spot % (ROWS * COLUMNS)).to(torch.uint8),
            "csf_escape_value": blocks.view(-1)[spot],
        }

    def _require(self, components: Mapping[str, torch.Tensor], rows: int, columns: int) -> torch.Tensor:
        """Checks every component; returns the block of each escape (int64)."""
        self.require_matrix(rows, columns)
        require_components(self.name, components, self.components)
        for name in self.components:
            require_tensor(self.name, name, components[name], torch.uint8)
        grid = (rows // ROWS, columns // COLUMNS)
        for name, shape in (("csf_base", grid), ("csf_codes", (*grid, ROWS)), ("csf_escape_count", grid)):
            if tuple(components[name].shape) != shape:
                found = f"shape {list(components[name].shape)}"
                refuse(self.name, name, found, f"shape {list(shape)} for {rows} x {columns} scales")
        base, count = components["csf_base"], components["csf_escape_count"]
        if int(base.max()) > HIGHEST_BASE:
            refuse(self.name, "csf_base", f"a base of {int(base.max())}", f"at most {HIGHEST_BASE}")
        if int(count.max()) > HIGHEST_COUNT:
            refuse(
                self.name, "csf_escape_count", f"a count of {int(count.max())}", f"at most {HIGHEST_COUNT}"
            )
        total = int(count.sum())
        for name in self.components[3:]:
            if tuple(components[name].shape) != (total,):
                found = f"shape {list(components[name].shape)}"
                refuse(self.name, name, found, f"shape [{total}], the sum of all escape counts")
        owner = torch.repeat_interleave(count.reshape(-1).long())
        position = components["csf_escape_position"]
        if total and int(position.max()) > HIGHEST_COUNT:
            refuse(self.name, "csf_escape_position", f"position {int(position.max())}", "positions below 64")
        together = (owner[1:] == owner[:-1]) & (position[1:] <= position[:-1])
        if bool(together.any()):
            refuse(
                self.name,
                "csf_escape_position",
                "positions that do not increase inside a block",
                "increasing",
            )
        return owner

    def decode_into(self, components: Mapping[str, torch.Tensor], out: torch.Tensor) -> None:
        """Writes the scale bytes into `out` [R, C] (uint8, contiguous)."""
        rows, columns = out.shape
        owner = self._require(components, rows, columns)
        grid = rows // ROWS, columns // COLUMNS
        base, codes = components["csf_base"], components["csf_codes"]
        pairs = out.view(torch.int16).view(grid[0], ROWS, grid[1])
        spread_nibbles(codes.transpose(1, 2), base.unsqueeze(1), pairs)
        position = components["csf_escape_position"].long()
        row = torch.div(owner, grid[1], rounding_mode="floor") * ROWS + (position >> 1)
        column = (owner % grid[1]) * COLUMNS + (position & 1)
        out.view(-1)[row * columns + column] = components["csf_escape_value"]

    def cut(
        self, components: Mapping[str, torch.Tensor], shape: tuple[int, int], rows: range, columns: range
    ) -> dict[str, torch.Tensor]:
        """The components of a part, without decoding: rows in multiples of 32, even columns. Nothing is
        refitted.
        """
        owner = self._require(components, *shape)
        if rows.start % ROWS or rows.stop % ROWS or columns.start % COLUMNS or columns.stop % COLUMNS:
            raise CutError(
                f"cut of {self.name}",
                found=f"rows {rows.start}:{rows.stop}, columns {columns.start}:{columns.stop}",
                expected=f"rows in multiples of {ROWS}, even columns",
            )
        down = slice(rows.start // ROWS, rows.stop // ROWS)
        across = slice(columns.start // COLUMNS, columns.stop // COLUMNS)
        inside = torch.zeros_like(components["csf_base"], dtype=torch.bool)
        inside[down, across] = True
        keep = inside.view(-1)[owner]
        return {
            **{name: components[name][down, across] for name in self.components[:3]},
            **{name: components[name][keep] for name in self.components[3:]},
        }


BLOCK = Block()
