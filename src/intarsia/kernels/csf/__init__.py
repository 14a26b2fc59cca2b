"""Expanding the compressed scales of many matrices at once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from intarsia.kernels.choice import TRITON, Case, choose
from intarsia.kernels.csf import launch

__all__ = ["Batch", "expands_together", "fits"]


def expands_together(codec: str, rows: int, columns: int, device: torch.device) -> bool:
    """Whether a `Batch` takes such matrices; if not, `formats.csf` expands them one by one."""
    return choose(Case("csf_expand", (codec,), torch.uint8, device, (rows, columns))) == TRITON


def fits(codec: str, rows: int, columns: int, held: Sequence[tuple[str, tuple[int, ...]]]) -> bool:
    """Whether components in the codec's order, by dtype ("U8", "U32") and shape, are those of such a matrix.

    A fixed one may be flat, as files may keep it.
    """
    fixed, listed = launch.LAYOUTS[codec].components(rows, columns)
    shapes = held[: len(fixed)]
    lists = held[len(fixed) :]
    lengths = {shape for _, shape in lists}
    return (
        all(
            dtype == "U8" and torch.Size(shape).numel() == torch.Size(wanted).numel()
            for (dtype, shape), wanted in zip(shapes, fixed.values(), strict=True)
        )
        and all(
            dtype == ("U32" if wanted == torch.uint32 else "U8")
            for (dtype, _), wanted in zip(lists, listed.values(), strict=True)
        )
        and len(lengths) == 1
        and all(len(shape) == 1 for shape in lengths)
    )


class Batch:
    """Components of matrices of one shape, side by side on the device, and where their scales go.

    `outs` are contiguous bytes [rows, columns], views of one tensor; `exceptions` says how many each matrix
    has. Fill what `components` gives for every matrix, then `expand`.
    """

    def __init__(self, codec: str, outs: Sequence[Tensor], exceptions: Sequence[int]) -> None:
        self._layout = launch.LAYOUTS[codec]
        self._outs, self._exceptions = outs, exceptions
        rows, columns = outs[0].shape
        fixed, listed = self._layout.components(rows, columns)
        device, total = outs[0].device, sum(exceptions)
        self._whole = {
            name: torch.empty((len(outs), *shape), dtype=torch.uint8, device=device)
            for name, shape in fixed.items()
        } | {name: torch.empty(total, dtype=dtype, device=device) for name, dtype in listed.items()}
        self._parts = {name: torch.split(self._whole[name], list(exceptions)) for name in listed}

    def components(self, index: int) -> dict[str, Tensor]:
        """The memory of one matrix's components, by suffix."""
        return {
            name: self._parts[name][index] if name in self._parts else whole[index]
            for name, whole in self._whole.items()
        }

    def expand(self) -> Tensor:
        """Writes all scales; a bool on the device: whether a component breaks a rule of the codec."""
        return launch.launch(self._layout, self._whole, self._exceptions, self._outs)
