"""The Triton encoders' launches."""

import torch
from torch import Tensor

from intarsia.formats.codes import ceil_log2_carry
from intarsia.formats.fp8_block import SIDE
from intarsia.formats.fp8_channel import AMAX_MIN
from intarsia.formats.sources import DTYPES
from intarsia.formats.stored import Stored
from intarsia.kernels.choice import Case, offer
from intarsia.kernels.device import interpreting, on_device_of

_GROUP = {"MXFP8": 32, "NVFP4": 16, "W4A16_NVFP4": 16, "FP8_PB_WO": 1}
FORMATS = tuple(_GROUP)
_ELEMENTS, _WARPS = 4096, 4  # of a program that encodes
_NVFP4_GROUPS, _NVFP4_WARPS = 128, 4  # one group a thread
_AMAX_ELEMENTS, _AMAX_WARPS = 16384, 8  # of one that looks for the largest magnitude
_BLOCK_WARPS = 8


def refuse(case: Case) -> str:
    """Why the Triton encoders cannot run a case, or the empty string."""
    name = case.formats[0]
    if name not in FORMATS:
        return f"no encoder for {name}; there is one for {', '.join(FORMATS)}"
    if case.dtype not in DTYPES:
        return f"a weight of {str(case.dtype).removeprefix('torch.')}; float32, bfloat16 or float16 is needed"
    if len(case.shape) not in (2, 3) or 0 in case.shape or case.shape[-1] % _GROUP[name]:
        return f"shape {list(case.shape)}; whole groups of {_GROUP[name]} columns are needed"
    return ""


offer("encode", refuse)


def launch(name: str, weight: Tensor, amax: Tensor | float | None, fault: Tensor) -> Stored:
    """The stored form. `fault`, a bool on the device, is set where a value is not finite or beyond `amax`.

    `amax` has the shape of the global scales, [*lead] or [*lead, parts], or is one number for all of them.
    """
    whole = weight.detach().contiguous()
    with on_device_of(whole):
        if name == "MXFP8":
            return _mxfp8(whole, fault)
        if name == "FP8_PB_WO":
            return _fp8_block(whole, fault)
        return _nvfp4(name, whole, amax, fault)


def _mxfp8(whole: Tensor, fault: Tensor) -> Stored:
    from intarsia.kernels.encode import triton_encode as kernels

    *lead, columns = whole.shape
    elements = torch.empty(whole.shape, dtype=torch.float8_e4m3fn, device=whole.device)
    exponents = torch.empty(*lead, columns // 32, dtype=torch.uint8, device=whole.device)
    groups = exponents.numel()
    each = _ELEMENTS // 32
    kernels.encode_mxfp8[(-(-groups // each),)](
        whole,
        ceil_log2_carry(whole.device),
        elements.view(torch.uint8),
        exponents,
        fault.view(torch.uint8),
        groups,
        GROUPS=each,
        NATIVE=not interpreting(),
        num_warps=_WARPS,
    )
    tensors = {"weight": elements, "weight_scale": exponents}
    return Stored("MXFP8", tensors, tuple(whole.shape))


def _fp8_block(whole: Tensor, fault: Tensor) -> Stored:
    from intarsia.kernels.encode import triton_encode as kernels

    *lead, rows, columns = whole.shape
    bands, blocks = -(-rows // SIDE), -(-columns // SIDE)
    elements = torch.empty(whole.shape, dtype=torch.float8_e4m3fn, device=whole.device)
    scales = torch.empty(*lead, bands, 1, blocks, 1, dtype=torch.float32, device=whole.device)
    grid = (blocks, bands, whole.shape[0] if lead else 1)
    kernels.encode_fp8_blocks[grid](
        whole,
        elements.view(torch.uint8),
        scales,
        fault.view(torch.uint8),
        rows,
        columns,
        SMALLEST=AMAX_MIN,
        SIDE=SIDE,
        NATIVE=not interpreting(),
        num_warps=_BLOCK_WARPS,
    )
    tensors = {"weight": elements, "weight_scale": scales}
    return Stored("FP8_PB_WO", tensors, tuple(whole.shape))


def _nvfp4(name: str, whole: Tensor, amax: Tensor | float | None, fault: Tensor) -> Stored:
    from intarsia.kernels.encode import triton_encode as kernels

    *lead, rows, columns = whole.shape
    device = whole.device
    packed = torch.empty(*lead, rows, columns // 2, dtype=torch.uint8, device=device)
    scales = torch.empty(*lead, rows, columns // 16, dtype=torch.float8_e4m3fn, device=device)
    shape = tuple(lead)
    overlap = amax is None and not interpreting()
    if amax is not None:
        given = torch.as_tensor(amax, dtype=torch.float32, device=device)
        shape = tuple(given.shape) if given.ndim else shape
        largest = given.expand(shape).reshape(-1).contiguous().view(torch.int32)
    else:
        largest = torch.zeros(max(1, whole[..., 0, 0].numel()), dtype=torch.int32, device=device)
        size = whole.numel() // largest.numel()
        grid = (-(-size // _AMAX_ELEMENTS), largest.numel())
        kernels.largest_magnitude[grid](
            whole, largest, size, SIZE=_AMAX_ELEMENTS, OVERLAP=overlap, num_warps=_AMAX_WARPS
        )
    scale_2 = torch.empty(shape, dtype=torch.float32, device=device)
    groups = scales.numel() // largest.numel()
    each = _NVFP4_GROUPS
    kernels.encode_nvfp4[(-(-groups // each), largest.numel())](
        whole,
        largest,
        packed.view(torch.int32),
        scales.view(torch.uint8),
        scale_2,
        fault.view(torch.uint8),
        groups,
        GROUPS=each,
        OVERLAP=overlap,
        NATIVE=not interpreting(),
        num_warps=_NVFP4_WARPS,
        **({"launch_pdl": True} if overlap else {}),
    )
    tensors = {"weight": packed, "weight_scale": scales, "weight_scale_2": scale_2}
    return Stored(name, tensors, tuple(whole.shape))
