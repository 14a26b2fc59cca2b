"""Expanding the compressed scales of many matrices at once."""

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from intarsia.kernels.choice import TRITON, Case, choose
from intarsia.kernels.csf import launch

__all__ = ["Batch", "expands_together", "fits"]

Integers = NDArray[np.int64]


def expands_together(codec: str, rows: int, columns: int, device: torch.device) -> bool:
    """Whether a `Batch` takes such matrices; if not, `formats.csf` expands them one by one."""
    return choose(Case("csf_expand", (codec,), torch.uint8, device, (rows, columns))) == TRITON


def fits(codec: str, rows: int, columns: int, held: Sequence[tuple[str, tuple[int, ...]]]) -> bool:
    """Whether components in the codec's order, by dtype ("U8", "U32") and shape, are those of such a matrix.

    A fixed one may be flat, as files may keep it.
    """
    sizes, kinds = _expected(codec, rows, columns)
    if len(held) != len(sizes) + len(kinds):
        return False
    count = held[-1][1]
    for (dtype, shape), size in zip(held, sizes, strict=False):
        if dtype != "U8" or prod(shape) != size:
            return False
    for (dtype, shape), kind in zip(held[len(sizes) :], kinds, strict=True):
        if dtype != kind or shape != count:
            return False
    return len(count) == 1


@cache
def _expected(codec: str, rows: int, columns: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Bytes of the components of a fixed shape, and types of the others."""
    fixed, listed = launch.LAYOUTS[codec].components(rows, columns)
    kinds = ("U32" if dtype == torch.uint32 else "U8" for dtype in listed.values())
    return tuple(prod(shape) for shape in fixed.values()), tuple(kinds)


class Batch:
    """Components of matrices of one shape, side by side on the device, and where their scales go.

    Matrix `which[i]` of the contiguous bytes `stack` [matrices, rows, columns] is the i-th, and has
    `exceptions[i]`. Fill what `components` gives for every one, or what lies at `places`, then `expand`.
    """

    def __init__(self, codec: str, stack: Tensor, which: Sequence[int], exceptions: Sequence[int]) -> None:
        self._layout = launch.LAYOUTS[codec]
        self._stack, self._which = stack, which
        self._starts = [0, *accumulate(exceptions)]
        rows, columns = stack.shape[-2:]
        fixed, listed = self._layout.components(rows, columns)
        count, total, device = len(which), self._starts[-1], stack.device
        self._fixed = {
            name: torch.empty((count, *shape), dtype=torch.uint8, device=device)
            for name, shape in fixed.items()
        }
        self._lists = {name: torch.empty(total, dtype=dtype, device=device) for name, dtype in listed.items()}

    def components(self, index: int) -> dict[str, Tensor]:
        """The memory of one matrix's components, by suffix."""
        begin, end = self._starts[index : index + 2]
        lists = {name: whole[begin:end] for name, whole in self._lists.items()}
        return {name: whole[index] for name, whole in self._fixed.items()} | lists

    def places(self) -> dict[str, tuple[Integers, Integers]]:
        """By suffix: the addresses of all matrices' components, and their bytes."""
        count = len(self._which)
        found = {}
        for name, whole in self._fixed.items():
            each = whole.nbytes // count
            found[name] = whole.data_ptr() + each * np.arange(count), np.full(count, each)
        starts = np.array(self._starts)
        for name, whole in self._lists.items():
            size = whole.element_size()
            found[name] = whole.data_ptr() + size * starts[:-1], size * np.diff(starts)
        return found

    def expand(self) -> Tensor:
        """Writes all scales; a bool on the device: whether a component breaks a rule of the codec."""
        whole = self._fixed | self._lists
        return launch.launch(self._layout, whole, self._starts, self._stack, self._which)
