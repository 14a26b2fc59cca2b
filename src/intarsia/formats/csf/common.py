"""What the slab and block codecs share: window bases, nibble spreading, and the checks of a component."""

from collections.abc import Iterable, Mapping
from typing import NoReturn

import torch

from intarsia.formats.errors import CsfError

CHUNK = 1 << 18
"""Scale bytes that an encoder handles at a time: it bounds the histograms, and keeps them in a core's cache.
"""


def refuse(codec: str, component: str, found: str, expected: str) -> NoReturn:
    """Raises CsfError naming the codec and the component."""
    raise CsfError(f"{codec} component {component}" if component else codec, found=found, expected=expected)


def require_components(codec: str, components: Mapping[str, torch.Tensor], needed: Iterable[str]) -> None:
    """Raises CsfError when a component is missing or one is present that the codec does not have."""
    needed = tuple(needed)
    for name in needed:
        if name not in components:
            refuse(codec, name, "none", "every component of the matrix: " + ", ".join(needed))
    for name in components:
        if name not in needed:
            refuse(codec, name, "an extra component", "only " + ", ".join(needed))


def require_tensor(codec: str, name: str, tensor: torch.Tensor, dtype: torch.dtype) -> None:
    """Raises CsfError unless the component has the dtype."""
    if tensor.dtype != dtype:
        refuse(codec, name, str(tensor.dtype), str(dtype))


def window_bases(groups: torch.Tensor, width: int) -> torch.Tensor:
    """The lowest start in 0 .. 256 - width whose window holds most of a group's bytes; uint8 [n] of groups
    [n, size].
    """
    bases = torch.empty(groups.shape[0], dtype=torch.uint8, device=groups.device)
    step = max(1, CHUNK // max(groups.shape[1], 256))
    for start in range(0, groups.shape[0], step):
        part = groups[start : start + step]
        bases[start : start + step] = _bases_of(part, width)
    return bases


def _bases_of(groups: torch.Tensor, width: int) -> torch.Tensor:
    count = groups.shape[0]
    slots = groups.long() + torch.arange(0, count * 256, 256, device=groups.device).unsqueeze(1)
    histogram = torch.bincount(slots.reshape(-1), minlength=count * 256).view(count, 256)
    total = torch.nn.functional.pad(histogram.cumsum(1), (1, 0))
    inside = total[:, width:] - total[:, :-width]
    # The first of equal maxima: argmax alone does not promise it on every device.
    return (inside == inside.amax(dim=1, keepdim=True)).to(torch.uint8).argmax(dim=1).to(torch.uint8)


def spread_nibbles(codes: torch.Tensor, base: torch.Tensor, out: torch.Tensor) -> None:
    """Writes base + low nibble and base + high nibble of each code byte side by side into `out` (int16 view).

    No sum carries, since a base is at most 240. `base` broadcasts against `codes`.
    """
    wide = codes.to(torch.int16)
    pair = torch.bitwise_and(wide, 0x0F).add_(torch.bitwise_and(wide, 0xF0), alpha=16)
    torch.add(pair, base.to(torch.int16) * 257, out=out) if out.is_contiguous() else out.copy_(
        pair.add_(base.to(torch.int16) * 257)
    )
