"""The launches that expand compressed scales."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from intarsia.formats.csf.block import BLOCK, COLUMNS, ROWS
from intarsia.formats.csf.slab import NVFP4_SLAB, SLAB
from intarsia.kernels.choice import Case, offer
from intarsia.kernels.device import on_device_of

_WARPS = 4
_COUNTS = 1024  # escape counts that are added at a time

Fixed = dict[str, tuple[int, ...]]
Listed = dict[str, torch.dtype]


class SlabLayout:
    """Components of one matrix: those of a fixed shape, and those as long as it has exceptions."""

    kernel = "expand_slabs"
    bands_of = SLAB

    @staticmethod
    def components(rows: int, columns: int) -> tuple[Fixed, Listed]:
        shape = (rows // SLAB, SLAB * (1 + NVFP4_SLAB.code_bytes(columns)))
        return {NVFP4_SLAB.fixed: shape}, {NVFP4_SLAB.exceptions: torch.uint32}


class BlockLayout:
    """The same of the block codec."""

    kernel = "expand_blocks"
    bands_of = ROWS

    @staticmethod
    def components(rows: int, columns: int) -> tuple[Fixed, Listed]:
        grid = rows // ROWS, columns // COLUMNS
        base, codes, count, position, value = BLOCK.components
        return {base: grid, codes: (*grid, ROWS), count: grid}, {position: torch.uint8, value: torch.uint8}


Layout = SlabLayout | BlockLayout
LAYOUTS: dict[str, Layout] = {NVFP4_SLAB.name: SlabLayout(), BLOCK.name: BlockLayout()}


def refuse(case: Case) -> str:
    """Why the kernels cannot expand such matrices, or the empty string; shape: rows, columns."""
    layout = LAYOUTS.get(case.formats[0])
    if layout is None:
        return f"no kernel for {case.formats[0]}; there is one for {', '.join(LAYOUTS)}"
    rows, columns = case.shape
    whole = not rows % layout.bands_of and not columns % 2
    return "" if whole else f"{rows} x {columns} scales; whole bands of {layout.bands_of} rows are needed"


offer("csf_expand", refuse)


def launch(
    layout: Layout,
    components: Mapping[str, Tensor],
    starts: Sequence[int],
    stack: Tensor,
    which: Sequence[int],
) -> Tensor:
    """Expands matrices into places `which` of `stack` (bytes [matrices, rows, columns]); a bool on the
    device: whether a rule is broken.

    Fixed components are stacked, the others follow each other: those of matrix i from starts[i] on.
    """
    from intarsia.kernels.csf import triton_csf as kernels

    rows, columns = stack.shape[-2:]
    places = [index * (rows * columns // 2) for index in which]
    table = torch.tensor([*starts, *places], dtype=torch.int64)
    if stack.is_cuda:
        # Of memory that is not pinned a copy would wait for all that the device was told before.
        table = table.pin_memory().to(stack.device, non_blocking=True)
    fault = torch.zeros(1, dtype=torch.int32, device=stack.device)
    pairs = columns // 2
    shared = (
        table,
        table[len(starts) :],
        stack.view(torch.uint8).view(torch.int16),
        fault,
        rows // layout.bands_of,
        pairs,
    )
    sizes = {"PAIRS": 1 << (pairs - 1).bit_length()} | (
        {"CHUNK": _COUNTS} if layout.kernel == "expand_blocks" else {}
    )
    tensors = [part.view(torch.int32) if part.dtype == torch.uint32 else part for part in components.values()]
    with on_device_of(stack):
        kernel = getattr(kernels, layout.kernel)
        kernel[(rows // layout.bands_of, len(which))](*tensors, *shared, **sizes, num_warps=_WARPS)
    return fault[0] > 0
