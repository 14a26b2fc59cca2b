"""Checks of stored tensors against a format's contract, shared by all formats."""

from collections.abc import Iterable, Mapping

import torch

from intarsia.formats.errors import CutError, LayoutError


def require(
    name: str, tensors: Mapping[str, torch.Tensor], needed: Iterable[str], optional: Iterable[str] = ()
) -> None:
    """Raises LayoutError when a needed suffix is missing or one is present that the format does not know."""
    needed = tuple(needed)
    missing = [suffix for suffix in needed if suffix not in tensors]
    extra = [suffix for suffix in tensors if suffix not in needed and suffix not in optional]
    if missing or extra:
        found = ", ".join(tensors) or "nothing"
        expected = ", ".join(needed)
        raise LayoutError(name, found=f"tensors {found}", expected=f"tensors {expected}")


def require_dtype(name: str, tensor: torch.Tensor, *dtypes: torch.dtype) -> None:
    """Raises LayoutError unless the tensor has one of the dtypes."""
    if tensor.dtype not in dtypes:
        raise LayoutError(name, found=str(tensor.dtype), expected=" or ".join(map(str, dtypes)))


def require_shape(name: str, tensor: torch.Tensor, *shapes: tuple[int, ...]) -> None:
    """Raises LayoutError unless the tensor has one of the shapes."""
    if tuple(tensor.shape) not in shapes:
        expected = " or ".join(str(list(shape)) for shape in shapes)
        raise LayoutError(name, found=f"shape {list(tensor.shape)}", expected=f"shape {expected}")


def require_matrix(name: str, tensor: torch.Tensor) -> None:
    """Raises LayoutError unless the tensor is a matrix or a stack of matrices, and not empty."""
    if tensor.ndim not in (2, 3) or tensor.numel() == 0:
        found = f"shape {list(tensor.shape)}"
        raise LayoutError(name, found=found, expected="[rows, columns] or [experts, rows, columns]")


def require_global(name: str, scale: torch.Tensor, lead: tuple[int, ...], rows: int) -> None:
    """Raises LayoutError unless `scale` is [*lead] or [*lead, parts], where the parts split the rows equally."""
    parts = scale.shape[-1] if scale.ndim == len(lead) + 1 else 1
    if tuple(scale.shape) not in (lead, (*lead, parts)) or parts < 1 or rows % parts:
        expected = f"shape {list(lead)}, or one more dimension of equal parts of {rows} rows"
        raise LayoutError(name, found=f"shape {list(scale.shape)}", expected=expected)


def rows_of_global(scale: torch.Tensor, rows: int) -> torch.Tensor:
    """The global scale of every row of one matrix: [1] or [rows], from a scale of shape [] or [parts]."""
    if scale.numel() == 1:
        return scale.reshape(1)
    return scale.repeat_interleave(rows // scale.numel())


def cut_global(name: str, scale: torch.Tensor, lead: int, whole: int, rows: range) -> torch.Tensor:
    """The global scales of a row range: of one part, or of whole parts. Raises CutError in between.

    `lead` is the number of leading stack dimensions, `whole` the number of rows before the cut.
    """
    if scale.ndim == lead or scale.shape[-1] == 1:
        return scale
    size = whole // scale.shape[-1]
    first, last = rows.start // size, (rows.stop - 1) // size
    if first == last:
        return scale[..., first]
    if rows.start % size or rows.stop % size:
        raise CutError(
            f"cut of {name}",
            found=f"rows {rows.start}:{rows.stop}",
            expected=f"rows inside one part or whole parts of {size} rows, since each part has its own global scale",
        )
    return scale[..., first : last + 1]


def whole_groups(name: str, columns: range, group: int) -> range:
    """The range of scale columns that a column range covers. Raises CutError when it splits a group."""
    if columns.start % group or columns.stop % group:
        raise CutError(
            f"cut of {name}",
            found=f"columns {columns.start}:{columns.stop}",
            expected=f"multiples of {group} columns, which share one scale",
        )
    return range(columns.start // group, columns.stop // group)


def as_slice(part: range) -> slice:
    return slice(part.start, part.stop)
