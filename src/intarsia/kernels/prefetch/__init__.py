"""Asking for weights before the kernel that reads them begins: memory is idle while little kernels run."""

from collections.abc import Sequence

import torch

from intarsia.formats.stored import Stored
from intarsia.kernels.aside import aside, branches
from intarsia.kernels.device import on_device_of
from intarsia.kernels.weights import Weight

__all__ = ["prefetch"]

AT_ONCE = 12 << 20
"""Bytes asked for at a time, by default. Twice as many delay the little kernels by more than they gain."""
_BLOCK = 1 << 18  # bytes that one program asks for
_EACH = 1 << 12  # bytes of one request
_WARPS = 2


def prefetch(like: torch.Tensor, weights: Sequence[Weight], most: int = AT_ONCE) -> None:
    """Have up to `most` bytes of `weights` brought to the cache aside, where a captured step may branch.

    Of each as many blocks, evenly spread, so that programs which find theirs there run beside others that
    wait for memory. It changes no bit of anything.
    """
    if not branches(like):
        return
    from intarsia.kernels.prefetch import triton_prefetch as kernels

    codes = [one.view(torch.uint8) for one in map(_codes, weights) if one.is_contiguous()]
    blocks = tuple(one.nbytes // _BLOCK for one in codes)
    wanted = min([most // (_BLOCK * max(1, len(codes))), *blocks])
    if not codes or not wanted:
        return
    with aside(like), on_device_of(like):
        kernels.request_blocks[(len(codes) * wanted,)](
            tuple(codes), blocks, wanted, COUNT=len(codes), BLOCK=_BLOCK, EACH=_EACH, num_warps=_WARPS
        )


def _codes(weight: Weight) -> torch.Tensor:
    """The numbers of a matrix, without its scales."""
    return weight["weight"] if isinstance(weight, Stored) else weight
