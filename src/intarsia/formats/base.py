"""What every number format offers: its storage contract, encode, decode, cut, join and check."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

import torch
from torch import Tensor

from intarsia.core.errors import Violation
from intarsia.formats.codes import chunks
from intarsia.formats.errors import CutError, LayoutError
from intarsia.formats.stored import Stored


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One stored tensor: its torch dtype and shape."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class Format(ABC):
    """One number format. `intarsia.formats.get` returns the one of a name; it holds no state."""

    name: str
    block: ClassVar[tuple[int, int]] = (1, 1)
    """Rows and columns that share a stored entry. Columns can only be cut between those of a block."""
    optional: frozenset[str] = frozenset()
    """Suffixes that may be present and travel unchanged, such as `input_scale`."""

    @abstractmethod
    def layout(self, shape: tuple[int, ...]) -> dict[str, TensorSpec]:
        """The tensors `encode` writes for a logical shape, [rows, columns] or [experts, rows, columns].

        Raises UnencodableError when the format's blocks do not divide the shape.
        """

    @abstractmethod
    def encode(self, weight: Tensor, *, amax: Tensor | float | None = None) -> Stored:
        """Encodes a float32, bfloat16 or float16 weight [.., rows, columns]: the same bytes on every device.

        `amax` is the largest magnitude that a fused group shares: one value, one an expert, or one for each
        of equal row parts. Formats without a global scale ignore it. Raises UnencodableError for NaN,
        infinity, an `amax` below the weight's own, or columns that are no whole blocks.
        """

    @abstractmethod
    def _problems(self, tensors: Mapping[str, Tensor], origin: tuple[int, int]) -> list[Violation]:
        """Every tensor that is missing, extra, or of another dtype or shape than this format stores."""

    @abstractmethod
    def _shape(self, tensors: Mapping[str, Tensor]) -> tuple[int, ...]:
        """The logical shape of tensors without problems."""

    @abstractmethod
    def _decode(self, stored: Stored, rows: slice, out: Tensor) -> None:
        """Writes rows of a matrix into `out`, float32 and contiguous."""

    @abstractmethod
    def _cut(self, stored: Stored, rows: range, columns: range) -> Stored:
        """The cut, of ranges already known to be inside."""

    @abstractmethod
    def _join(self, parts: Sequence[Stored]) -> dict[str, Tensor]:
        """The tensors of parts of one format below each other, whose shapes are known to allow it."""

    def row_parts(self, rows: Sequence[int], origin: int = 0) -> int:
        """How many parts with scale blocks of their own a stack of matrices of so many `rows` has, each
        beginning `origin` rows inside a block; 1 where the parts meet between blocks.

        Raises LayoutError for parts that can be stacked neither way.
        """
        return 1

    def stored(
        self, tensors: Mapping[str, Tensor], *, origin: tuple[int, int] = (0, 0), row_parts: int = 1
    ) -> Stored:
        """Wraps tensors by suffix, once they are known to be this format's. Raises LayoutError."""
        claimed = Stored(self.name, tensors, (), origin, row_parts)
        problems = self._problems(claimed, origin)
        if problems:
            raise LayoutError(self.name, problems)
        return replace(claimed, shape=self._shape(tensors))

    def _whole(self, stored: Mapping[str, Tensor]) -> Stored:
        return stored if isinstance(stored, Stored) else self.stored(stored)

    def decode(
        self, stored: Mapping[str, Tensor], dtype: torch.dtype = torch.float32, *, out: Tensor | None = None
    ) -> Tensor:
        """The values in float32 arithmetic, rounded once to `dtype` at the end.

        `out`, if given, receives the values in its own dtype. Raises LayoutError for tensors of another
        format.
        """
        whole = self._whole(stored)
        if out is None:
            out = torch.empty(whole.shape, dtype=dtype, device=whole["weight"].device)
        if out.shape != whole.shape:
            problem = Violation("shape", "out", f"shape {list(out.shape)}", f"shape {list(whole.shape)}")
            raise LayoutError(self.name, [problem])
        for index in range(whole.shape[0]) if len(whole.shape) == 3 else (None,):
            matrix = whole if index is None else whole.expert(index)
            target = out if index is None else out[index]
            for rows in chunks(target):
                part = target[rows]
                if part.dtype == torch.float32 and part.is_contiguous():
                    self._decode(matrix, rows, part)
                else:
                    values = torch.empty(part.shape, dtype=torch.float32, device=out.device)
                    self._decode(matrix, rows, values)
                    part.copy_(values)
        return out

    def gather(
        self, stored: Mapping[str, Tensor], index: Tensor, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """The values [len(index), columns] of some rows of a matrix, decoding only those."""
        whole = self._whole(stored)
        if not index.numel():
            return torch.empty(0, whole.columns, dtype=dtype, device=whole["weight"].device)
        rows = [self.cut(whole, range(at, at + 1), range(whole.columns)) for at in index.tolist()]
        return torch.cat([self.decode(row, dtype) for row in rows])

    def cut(self, stored: Mapping[str, Tensor], rows: range, columns: range) -> Stored:
        """The part at logical `rows` and `columns`, as views of the stored entries: nothing is encoded again.

        Raises CutError when the part is empty, out of range, or would split a stored entry.
        """
        whole = self._whole(stored)
        require_inside(self.name, rows, whole.rows, columns, whole.columns)
        return self._cut(whole, rows, columns)

    def join(self, parts: Sequence[Stored]) -> Stored:
        """Matrices (or stacks) of this format below each other, as a fused module holds them; the first on
        top.

        Parts with global scales keep their own, so they must have equally many rows. Raises LayoutError.
        """
        first = parts[0]
        same = all(
            (part.format, part.shape[:-2], part.columns, part.origin[1], tuple(part.tensors), part.row_parts)
            == (first.format, first.shape[:-2], first.columns, first.origin[1], tuple(first.tensors), 1)
            for part in parts
        )
        if not same or first.format != self.name:
            found = "; ".join(f"{part.format} {list(part.shape)} from {part.origin}" for part in parts)
            problem = Violation("join", "parts", found, "equal formats, columns and tensors")
            raise LayoutError(self.name, [problem])
        rows = sum(part.rows for part in parts)
        alike = len({part.origin for part in parts}) == 1
        own = self.row_parts([part.rows for part in parts], first.origin[0]) if alike else 1
        joined = self._join(parts)
        return replace(first, tensors=joined, shape=(*first.shape[:-2], rows, first.columns), row_parts=own)

    def check(
        self, stored: Mapping[str, Tensor], where: str = "", *, elements: bool = True
    ) -> list[Violation]:
        """Every broken rule of tensors, dtypes, shapes and values; reads the scales, and the elements if
        asked.

        `where` is the module's name, put before the suffix in each violation.
        """
        found = self._problems(stored, getattr(stored, "origin", (0, 0)))
        if not found:
            found = self._bad_values(self._whole(stored), elements)
        return [replace(item, where=f"{where}.{item.where}" if where else item.where) for item in found]

    def remarks(self, stored: Mapping[str, Tensor], where: str = "") -> list[Violation]:
        """What is legal but deserves a look, in the form of violations: it decodes as documented."""
        found = self._oddities(self._whole(stored))
        return [replace(item, where=f"{where}.{item.where}" if where else item.where) for item in found]

    def _bad_values(self, stored: Stored, elements: bool) -> list[Violation]:
        return []

    def _oddities(self, stored: Stored) -> list[Violation]:
        return []


def require_inside(name: str, rows: range, row_count: int, columns: range, column_count: int) -> None:
    """Raises CutError unless both are ranges of step 1, not empty, and inside."""
    for axis, wanted, size in (("rows", rows, row_count), ("columns", columns, column_count)):
        if wanted.step != 1 or not 0 <= wanted.start < wanted.stop <= size:
            raise CutError(
                f"cut of {name}",
                found=f"{axis} {wanted.start}:{wanted.stop}:{wanted.step}",
                expected=f"a range with step 1 and at least one of {size} {axis}",
            )


def whole_groups(name: str, columns: range, group: int) -> slice:
    """The scale columns under a range of columns. Raises CutError when the range splits a group."""
    if columns.start % group or columns.stop % group:
        raise CutError(
            f"cut of {name}",
            found=f"columns {columns.start}:{columns.stop}",
            expected=f"multiples of {group} columns, which share one scale",
        )
    return slice(columns.start // group, columns.stop // group)


def as_slice(part: range) -> slice:
    return slice(part.start, part.stop)
