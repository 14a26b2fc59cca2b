"""How much memory converting one matrix takes beside its source on disk and its final place.

Loading cuts its work by these numbers and planning predicts the peak with them, so both say the same. Bytes
are those of the device that encodes.
"""

from dataclasses import dataclass

import torch

from intarsia.kernels.encode import WITH_GLOBAL
from intarsia.planning.errors import BudgetError

# The largest magnitude of such a matrix must be known before a row can be encoded.
NEEDS_LARGEST = WITH_GLOBAL | {"FP8"}

HOLD_BYTES = 64 << 20
"""Matrices that share a global scale are kept as read up to this size; larger ones are read twice."""

TEMPORARY = {
    "NVFP4": 14, "W4A16_NVFP4": 14, "MXFP8": 7, "MXFP4": 14,
    "FP8": 13, "FP8_PER_CHANNEL_PER_TOKEN": 7, "FP8_PB_WO": 11,
}  # fmt: skip
"""Bytes an element that the encoder of a format allocates at most, its results included."""

DECODED = 26
"""The same, with the decoder before it, of a matrix that is quantized already."""

_CORE_ELEMENTS = 1 << 18
_MOST_ELEMENTS = 1 << 21
_DEVICE_ELEMENTS = 1 << 23
_ROW_BLOCKS = {"FP8_PB_WO": 128}


@dataclass(frozen=True, slots=True)
class Step:
    """How one group of matrices is converted: `rows` at a time, kept whole in between if `hold`."""

    rows: int
    hold: bool
    nbytes: int


@dataclass(frozen=True, slots=True)
class Working:
    """Where a load encodes, and the most working memory it may take (None: what it likes)."""

    device: str = "cpu"
    budget: int | None = None

    @property
    def elements(self) -> int:
        """Elements encoded at a time when memory does not ask for fewer."""
        if self.device != "cpu":
            return _DEVICE_ELEMENTS
        return min(_MOST_ELEMENTS, _CORE_ELEMENTS * torch.get_num_threads())

    def step(
        self,
        where: str,
        format_name: str,
        shape: tuple[int, ...],
        *,
        element: int,
        unit: int,
        stored: str | None = None,
    ) -> Step:
        """How to convert a matrix of logical `shape` [rows, columns] to a format.

        `element` is the bytes of a source element once read (or decoded), `unit` the bytes of all matrices
        that share a global scale, `stored` the format of a quantized source. Raises BudgetError naming
        `where` when not even the smallest step fits.
        """
        block = max(_ROW_BLOCKS.get(format_name, 1), _ROW_BLOCKS.get(stored or "", 1))
        rows, columns = shape
        row = columns * (element + (TEMPORARY[format_name] if stored is None else DECODED))
        wanted = min(max(1, self.elements // (columns * block)), -(-rows // block)) * block
        shared = format_name in NEEDS_LARGEST
        if self.budget is None:
            hold = shared and unit <= HOLD_BYTES
            return Step(wanted, hold, wanted * row + (unit if hold else 0))
        if block * row > self.budget:
            raise BudgetError(
                where,
                found=f"{block * row:,} bytes for {block} rows of {columns} columns",
                expected=f"at most {self.budget:,} bytes of working memory",
                action="allow a larger budget",
            )
        hold = shared and unit <= HOLD_BYTES and unit + block * row <= self.budget
        left = self.budget - (unit if hold else 0)
        fitting = min(wanted, left // row // block * block)
        return Step(fitting, hold, fitting * row + (unit if hold else 0))
