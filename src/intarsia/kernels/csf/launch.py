"""The launch that expands slab-compressed scales."""

from collections.abc import Sequence

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


def launch(fixed: Sequence[Tensor], words: Sequence[Tensor], outs: Sequence[Tensor]) -> Tensor:
    """Expands matrices of one shape into views of one tensor; a bool on the device: whether a rule is broken.

    fixed: uint8 [slabs, 16 * (1 + columns / 2)] each · words: uint32 [m] each · outs: bytes [rows, columns].
    """
    from intarsia.kernels.csf import triton_csf as kernels

    rows, columns = outs[0].shape
    device = outs[0].device
    streams = torch.cat([part.reshape(-1) for part in fixed])
    exceptions = torch.cat([part.view(torch.int32) for part in words])
    first = min(outs, key=lambda out: int(out.storage_offset()))
    numbers = [0]
    for part in words:
        numbers.append(numbers[-1] + part.numel())
    numbers += [int(out.storage_offset() - first.storage_offset()) // 2 for out in outs]
    table = torch.tensor(numbers, dtype=torch.int64, device=device)
    fault = torch.zeros(1, dtype=torch.int32, device=device)
    with on_device_of(first):
        kernels.expand_slabs[(rows // SLAB, len(outs))](
            streams,
            exceptions,
            table,
            table[len(words) + 1 :],
            first.view(torch.uint8).view(torch.int16),
            fault,
            rows // SLAB,
            columns // 2,
            PAIRS=1 << (columns // 2 - 1).bit_length(),
            num_warps=_WARPS,
        )
    return fault[0] > 0
