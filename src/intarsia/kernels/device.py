"""Host side of launches: what every Triton kernel's caller needs."""

import os
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from intarsia.kernels.errors import KernelError

_OVERLAP_UP_TO = 64  # rows; with more a kernel is long, and what begins early takes room from it


def interpreting() -> bool:
    """Whether Triton runs its kernels in its interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def on_device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """Launches go to the current device: make it that of `tensor`."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def byte_view(tensor: Tensor) -> Tensor:
    """Eight-bit numbers as bytes; other tensors unchanged."""
    return tensor.view(torch.uint8) if tensor.element_size() == 1 else tensor


def word_view(where: str, tensor: Tensor) -> Tensor:
    """Codes [.., columns] of eight bits or less as 16-bit words; wider numbers unchanged.

    Raises KernelError where a row does not begin on an even byte or is not a whole number of words.
    """
    if tensor.element_size() != 1:
        return tensor
    odd = [*tensor.stride()[:-1], tensor.shape[-1], tensor.storage_offset()]
    if any(number % 2 for number in odd):
        raise KernelError(
            where,
            found=f"rows of {tensor.shape[-1]} bytes from byte {tensor.storage_offset()}",
            expected="rows of an even number of bytes that begin on even ones",
            action="pass a contiguous weight with an even number of columns",
        )
    return tensor.view(torch.int16)


def wide(*dtypes: torch.dtype) -> bool:
    """Whether products are formed from float32 operands: an operand is float32, or no tensor core is at hand
    (the interpreter's bfloat16 products are wrong).
    """
    return torch.float32 in dtypes or interpreting()


def require_packed_columns(where: str, *tensors: Tensor) -> None:
    """Raises KernelError for a tensor whose last dimension is not consecutive in memory."""
    for tensor in tensors:
        if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise KernelError(
                where,
                found=f"a last dimension with stride {tensor.stride(-1)}",
                expected="consecutive columns",
                action="pass a contiguous weight",
            )


def power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count`."""
    return 1 << (count - 1).bit_length()


def overlapped(rows: int) -> dict[str, bool]:
    """Options of a launch that may begin before the one before it ends, where there are few rows.

    Its kernel waits before it reads what any launch before it wrote, unless that launch's successor had done
    so before it let others begin.
    """
    overlap = rows <= _OVERLAP_UP_TO and not interpreting()
    return begun_early(overlap)


def begun_early(overlap: bool) -> dict[str, bool]:
    """The options that let a launch begin before the one before it ends, where it may; see `overlapped`."""
    return {"OVERLAP": overlap, **({"launch_pdl": True} if overlap else {})}
