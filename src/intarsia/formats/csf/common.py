"""What the slab and block codecs share: window bases, nibbles, and the checks of components."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from intarsia.core.errors import Violation
from intarsia.formats.errors import CsfError, CutError

_CHUNK = 1 << 18
"""Histogram entries that are made at a time: it bounds the memory of an encoder, and stays in the caches."""


def no_matrix(codec: str, found: str, expected: str) -> CsfError:
    """The refusal of a matrix that a codec cannot hold, whatever its components are."""
    return CsfError(codec, found=found, expected=expected)


def raise_first(codec: str, problems: Sequence[Violation]) -> None:
    """Raises CsfError for the first problem, naming the codec and the component."""
    if problems:
        first = problems[0]
        raise CsfError(f"{codec} component {first.where}", found=first.found, expected=first.expected)


def component_set(components: Mapping[str, Tensor], needed: tuple[str, ...]) -> list[Violation]:
    """A violation for every component that is missing, and every one that the codec does not have."""
    expected = "the components " + ", ".join(needed)
    found = [Violation("csf-missing", name, "none", expected) for name in needed if name not in components]
    return found + [
        Violation("csf-extra", name, "an unknown component", expected)
        for name in components
        if name not in needed
    ]


def dtype(name: str, tensor: Tensor, wanted: torch.dtype) -> list[Violation]:
    """A violation unless the component has the dtype."""
    if tensor.dtype == wanted:
        return []
    found, expected = (str(kind).removeprefix("torch.") for kind in (tensor.dtype, wanted))
    return [Violation("csf-dtype", name, found, expected)]


def shape(name: str, tensor: Tensor, *allowed: tuple[int, ...]) -> list[Violation]:
    """A violation unless the component has one of the shapes."""
    if tuple(tensor.shape) in allowed:
        return []
    expected = "shape " + " or ".join(str(list(size)) for size in allowed)
    return [Violation("csf-shape", name, f"shape {list(tensor.shape)}", expected)]


def at_most(name: str, what: str, values: Tensor, limit: int) -> list[Violation]:
    """A violation when a value of a component (uint8) is above the limit."""
    largest = int(values.max()) if values.numel() else 0
    return [Violation("csf-range", name, f"{what} {largest}", f"at most {limit}")] if largest > limit else []


def window_bases(groups: Tensor, width: int) -> Tensor:
    """The lowest start in 0 .. 256 - width whose window of `width` values holds most of a group's bytes.

    `groups` is uint8 [n, size], contiguous; the result uint8 [n]. `width` is 2 or 16.
    """
    low, high = groups.amin(dim=1), groups.amax(dim=1)
    # All bytes in one window: the lowest such window ends at the highest byte, or starts at zero.
    bases = high - torch.minimum(high, torch.full_like(high, width - 1))
    wide = torch.nonzero(high - low >= width).squeeze(1)
    for part in torch.split(wide, _CHUNK // 256):
        bases[part] = _counted_bases(groups[part], width)
    return bases


def _counted_bases(groups: Tensor, width: int) -> Tensor:
    count = groups.shape[0]
    first = torch.arange(0, count * 256, 256, dtype=torch.int32, device=groups.device)
    slots = groups.int().add_(first.unsqueeze(1))
    inside = torch.bincount(slots.view(-1), minlength=count * 256).int().view(count, 256)
    reach = 1
    while reach < width:
        inside = inside[:, :-reach] + inside[:, reach:]
        reach *= 2
    # The largest count wins, and among equal counts the lowest start: both in one number.
    starts = inside.shape[1]
    rank = torch.arange(starts - 1, -1, -1, dtype=torch.int32, device=groups.device)
    best = inside.mul_(256).add_(rank).amax(dim=1)
    return (starts - 1 - (best & 0xFF)).to(torch.uint8)


def pack_nibbles(codes: Tensor) -> Tensor:
    """Bytes [..., n] of codes [..., 2n] (uint8 below 16, contiguous), the even one in the low bits."""
    pairs = codes.view(torch.int16)
    return ((pairs >> 4) | pairs).to(torch.uint8)


def add_nibbles(codes: Tensor, base: Tensor) -> Tensor:
    """The sums base + low nibble and base + high nibble of every code byte, side by side in an int16.

    No sum carries into its neighbour, since a base is at most 240. `base` (uint8) broadcasts against `codes`.
    """
    wide = codes.to(torch.int16)
    low = wide & 0x0F
    return low.add_(wide.bitwise_and_(0xF0), alpha=16).add_(base.to(torch.int16).mul_(257))


def require_steps(codec: str, rows: range, row_step: int, columns: range, column_step: int) -> None:
    """Raises CutError unless the part's rows and columns are whole multiples of the codec's steps."""
    if (
        rows.start % row_step
        or rows.stop % row_step
        or columns.start % column_step
        or columns.stop % column_step
    ):
        raise CutError(
            f"cut of {codec}",
            found=f"rows {rows.start}:{rows.stop}, columns {columns.start}:{columns.stop}",
            expected=f"rows in multiples of {row_step}, columns in multiples of {column_step}",
        )
