"""The block codec `csf_32x2_v1`: blocks of 32 rows x 2 columns, one base a block, 4-bit codes and escapes.

The layout is this project's own definition: only the name, that it is lossless, and that it has five
components a matrix are public. It has not been compared with a real file, and a component set that differs
is refused.

A byte is base + code; an escape replaces the byte at its position in the block, 2 * row + column. Blocks are
in row-major order.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from intarsia.core.errors import Violation
from intarsia.formats.csf import common

ROWS, COLUMNS = 32, 2
SIZE = ROWS * COLUMNS
WIDTH = 16
HIGHEST_BASE = 256 - WIDTH
HIGHEST_COUNT = SIZE - 1
"""A block never has 64 escapes, since the best window holds at least one byte."""


class Block:
    """Base [R/32, C/2], codes [R/32, C/2, 32], escape counts [R/32, C/2], and two streams of escapes."""

    name = "csf_32x2_v1"
    components = ("csf_base", "csf_codes", "csf_escape_count", "csf_escape_position", "csf_escape_value")

    def require_matrix(self, rows: int, columns: int) -> None:
        """Raises CsfError unless the codec can hold a matrix of that shape."""
        if rows <= 0 or rows % ROWS:
            raise common.no_matrix(self.name, f"{rows} rows", f"a multiple of {ROWS}")
        if columns <= 0 or columns % COLUMNS:
            raise common.no_matrix(self.name, f"{columns} columns", f"a multiple of {COLUMNS}")

    def encode(self, scales: Tensor) -> dict[str, Tensor]:
        """The canonical components of a contiguous matrix uint8 [R, C]."""
        rows, columns = scales.shape
        self.require_matrix(rows, columns)
        grid = rows // ROWS, columns // COLUMNS
        pairs = scales.view(torch.int16).view(grid[0], ROWS, grid[1])
        blocks = pairs.transpose(1, 2).contiguous().view(-1, ROWS).view(torch.uint8)
        base = common.window_bases(blocks, WIDTH)
        codes = blocks - base.unsqueeze(1)
        spot = torch.nonzero((codes >> 4).view(-1)).squeeze(1)
        codes.view(-1).index_fill_(0, spot, 0)
        count = torch.bincount(spot >> 6, minlength=base.shape[0])
        return {
            "csf_base": base.view(grid),
            "csf_codes": common.pack_nibbles(codes).view(*grid, ROWS),
            "csf_escape_count": count.to(torch.uint8).view(grid),
            "csf_escape_position": (spot & HIGHEST_COUNT).to(torch.uint8),
            "csf_escape_value": blocks.view(-1)[spot],
        }

    def _shapes(self, components: Mapping[str, Tensor], rows: int, columns: int) -> list[Violation]:
        """Every component that is missing, extra, or of another dtype or shape; raises CsfError for
        the matrix.
        """
        self.require_matrix(rows, columns)
        found = common.component_set(components, self.components)
        if found:
            return found
        for name in self.components:
            found += common.dtype(name, components[name], torch.uint8)
        grid = rows // ROWS, columns // COLUMNS
        for name, size in (("csf_base", grid), ("csf_codes", (*grid, ROWS)), ("csf_escape_count", grid)):
            found += common.shape(name, components[name], size)
        if found:
            return found
        total = int(components["csf_escape_count"].sum())
        for name in self.components[3:]:
            if tuple(components[name].shape) != (total,):
                expected = f"shape [{total}], the sum of all escape counts"
                found.append(Violation("csf-shape", name, f"shape {list(components[name].shape)}", expected))
        return found

    def _values(self, components: Mapping[str, Tensor], start: Tensor) -> list[Violation]:
        """Every rule that the contents of well-shaped components break; `start` tells blocks apart."""
        position = components["csf_escape_position"]
        found = common.at_most("csf_base", "a base of", components["csf_base"], HIGHEST_BASE)
        found += common.at_most(
            "csf_escape_count", "a count of", components["csf_escape_count"], HIGHEST_COUNT
        )
        found += common.at_most("csf_escape_position", "position", position, HIGHEST_COUNT)
        if bool(((start[1:] == start[:-1]) & (position[1:] <= position[:-1])).any()):
            expected = "each position of a block above the one before"
            found.append(Violation("csf-order", "csf_escape_position", "positions out of order", expected))
        return found

    def problems(self, components: Mapping[str, Tensor], rows: int, columns: int) -> list[Violation]:
        """Every rule that the components break. Raises CsfError when the codec cannot hold such a matrix."""
        found = self._shapes(components, rows, columns)
        return found or self._values(components, _starts(components, columns))

    def require_shapes(self, components: Mapping[str, Tensor], rows: int, columns: int) -> None:
        """Raises CsfError unless the components have the dtypes and shapes of such a matrix."""
        common.raise_first(self.name, self._shapes(components, rows, columns))

    def _checked(self, components: Mapping[str, Tensor], rows: int, columns: int) -> Tensor:
        self.require_shapes(components, rows, columns)
        start = _starts(components, columns)
        common.raise_first(self.name, self._values(components, start))
        return start

    def decode_into(self, components: Mapping[str, Tensor], out: Tensor) -> None:
        """Writes the scale bytes into the contiguous `out` uint8 [R, C]."""
        rows, columns = out.shape
        start = self._checked(components, rows, columns)
        pairs = common.add_nibbles(components["csf_codes"], components["csf_base"].unsqueeze(-1))
        out.view(torch.int16).view(rows // ROWS, ROWS, columns // COLUMNS).copy_(pairs.transpose(1, 2))
        position = components["csf_escape_position"].long()
        spot = start.add_(position >> 1, alpha=columns).add_(position & 1)
        out.view(-1).scatter_(0, spot, components["csf_escape_value"].contiguous())

    def cut(
        self, components: Mapping[str, Tensor], size: tuple[int, int], rows: range, columns: range
    ) -> dict[str, Tensor]:
        """The components of a part, without decoding: whole blocks. Nothing is refitted."""
        self._checked(components, *size)
        common.require_steps(self.name, rows, ROWS, columns, COLUMNS)
        down = slice(rows.start // ROWS, rows.stop // ROWS)
        across = slice(columns.start // COLUMNS, columns.stop // COLUMNS)
        count = components["csf_escape_count"]
        inside = torch.zeros(count.shape, dtype=torch.bool, device=count.device)
        inside[down, across] = True
        keep = torch.repeat_interleave(inside.view(-1), count.reshape(-1).long())
        return {
            **{name: components[name][down, across].contiguous() for name in self.components[:3]},
            **{name: components[name][keep] for name in self.components[3:]},
        }


def _starts(components: Mapping[str, Tensor], columns: int) -> Tensor:
    """Where in the matrix the block of every escape starts (int64), which also tells the blocks apart."""
    count = components["csf_escape_count"]
    down = torch.arange(0, count.shape[0] * ROWS * columns, ROWS * columns, device=count.device)
    across = torch.arange(0, columns, COLUMNS, device=count.device)
    starts = (down.unsqueeze(1) + across).view(-1)
    return torch.repeat_interleave(starts, count.reshape(-1).long())


BLOCK = Block()
