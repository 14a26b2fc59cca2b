"""Global scales: one a matrix, or one for each of equal row parts of a fused matrix."""

from collections.abc import Sequence

import torch
from torch import Tensor

from intarsia.core.errors import Violation
from intarsia.formats.errors import CutError, LayoutError
from intarsia.formats.stored import Stored


def of_rows(scale: Tensor, all_rows: int, rows: slice) -> Tensor:
    """The global scales of some rows of one matrix, [1, 1] or [len(rows), 1], from a scale [] or [parts]."""
    if scale.numel() == 1:
        return scale.reshape(1, 1)
    return scale.repeat_interleave(all_rows // scale.numel())[rows].unsqueeze(1)


def cut(name: str, scale: Tensor, lead: int, all_rows: int, rows: range) -> Tensor:
    """The global scales of a row range: of one part, or of whole parts. Raises CutError in between."""
    if scale.ndim == lead or scale.shape[-1] == 1:
        return scale
    size = all_rows // scale.shape[-1]
    first, last = rows.start // size, (rows.stop - 1) // size
    if first == last:
        return scale[..., first]
    if rows.start % size or rows.stop % size:
        raise CutError(
            f"cut of {name}",
            found=f"rows {rows.start}:{rows.stop}",
            expected=f"rows inside one part or whole parts of {size} rows, which have a global scale each",
        )
    return scale[..., first : last + 1]


def join(name: str, parts: Sequence[Stored], suffix: str) -> Tensor:
    """The global scales [*lead, parts] of matrices below each other. Raises LayoutError for unequal parts."""
    lead = len(parts[0].shape) - 2
    scales = [part[suffix] if part[suffix].ndim > lead else part[suffix].unsqueeze(-1) for part in parts]
    sizes = {part.rows // scale.shape[-1] for part, scale in zip(parts, scales, strict=True)}
    if len(sizes) != 1:
        found = ", ".join(f"{part.rows} rows" for part in parts)
        raise LayoutError(name, [Violation("join", suffix, found, "parts of equally many rows")])
    return torch.cat(scales, dim=-1)


def join_input_scale(parts: Sequence[Stored]) -> dict[str, Tensor]:
    """The activation scale that fused parts share: the largest, since it must cover all of them."""
    if "input_scale" not in parts[0]:
        return {}
    scales = [part["input_scale"] for part in parts]
    return {"input_scale": torch.stack(scales).amax(dim=0)}
