"""Expanding the compressed scales of many matrices at once."""

from collections.abc import Sequence

import torch
from torch import Tensor

from intarsia.formats.csf.slab import NVFP4_SLAB, SLAB
from intarsia.kernels.choice import TRITON, Case, choose
from intarsia.kernels.csf import launch

__all__ = ["Batch", "expands_together"]


def expands_together(codec: str, rows: int, columns: int, device: torch.device) -> bool:
    """Whether a `Batch` takes such matrices; if not, `formats.csf` expands them one by one."""
    return choose(Case("csf_expand", (codec,), torch.uint8, device, (rows, columns))) == TRITON


class Batch:
    """Components of matrices of one shape, side by side on the device, and where their scales go.

    `outs` are contiguous bytes [rows, columns], views of one tensor; `words` says how many exceptions each
    matrix has. Fill what `components` gives for every matrix, then `expand`.
    """

    def __init__(self, outs: Sequence[Tensor], words: Sequence[int]) -> None:
        rows, columns = outs[0].shape
        device = outs[0].device
        slabs = (len(outs), rows // SLAB, SLAB * (1 + NVFP4_SLAB.code_bytes(columns)))
        self._outs, self._words = outs, words
        self._streams = torch.empty(slabs, dtype=torch.uint8, device=device)
        self._exceptions = torch.empty(sum(words), dtype=torch.uint32, device=device)
        self._parts = torch.split(self._exceptions, list(words))

    def components(self, index: int) -> dict[str, Tensor]:
        """The memory of one matrix's components, by suffix."""
        return {NVFP4_SLAB.fixed: self._streams[index], NVFP4_SLAB.exceptions: self._parts[index]}

    def expand(self) -> Tensor:
        """Writes all scales; a bool on the device: whether a component breaks a rule of the codec."""
        return launch.launch(self._streams, self._exceptions, self._words, self._outs)
