"""The launch that expands slab-compressed scales."""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from intarsia.formats.csf.slab import NVFP4_SLAB, SLAB
from intarsia.kernels.choice import Case, offer
from intarsia.kernels.device import on_device_of

_WARPS = 4


def refuse(case: Case) -> str:
    """Why the kernel cannot expand such matrices, or the empty string; shape: rows, columns."""
    if case.formats[0] != NVFP4_SLAB.name:
        return f"no kernel for {case.formats[0]}; there is one for {NVFP4_SLAB.name}"
    rows, columns = case.shape
    return "" if not rows % SLAB and not columns % 2 else f"{rows} x {columns} scales; no slabs"


offer("csf_expand", refuse)


def launch(streams: Tensor, exceptions: Tensor, words: Sequence[int], outs: Sequence[Tensor]) -> Tensor:
    """Expands matrices of one shape into views of one tensor; a bool on the device: whether a rule is broken.

    streams uint8 [matrices, slabs, 16 * (1 + columns / 2)] · exceptions uint32, of all matrices in turn,
    `words` of each · outs: bytes [rows, columns].
    """
    from intarsia.kernels.csf import triton_csf as kernels

    rows, columns = outs[0].shape
    first = min(outs, key=lambda out: int(out.storage_offset()))
    starts = [0, *accumulate(words)]
    places = [int(out.storage_offset() - first.storage_offset()) // 2 for out in outs]
    table = torch.tensor(starts + places, dtype=torch.int64).to(first.device, non_blocking=True)
    fault = torch.zeros(1, dtype=torch.int32, device=first.device)
    with on_device_of(first):
        kernels.expand_slabs[(rows // SLAB, len(outs))](
            streams,
            exceptions.view(torch.int32),
            table,
            table[len(starts) :],
            first.view(torch.uint8).view(torch.int16),
            fault,
            rows // SLAB,
            columns // 2,
            PAIRS=1 << (columns // 2 - 1).bit_length(),
            num_warps=_WARPS,
        )
    return fault[0] > 0
