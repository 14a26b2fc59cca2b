"""The Triton encoders' launches."""

from collections.abc import Mapping

import torch
from torch import Tensor

from intarsia import formats
from intarsia.formats.codes import ceil_log2_carry
from intarsia.formats.fp8_block import SIDE
from intarsia.formats.fp8_channel import AMAX_MIN
from intarsia.formats.sources import DTYPES
from intarsia.formats.stored import Stored
from intarsia.kernels.choice import Case, offer
from intarsia.kernels.device import interpreting, on_device_of

_GROUP = {"MXFP8": 32, "NVFP4": 16, "W4A16_NVFP4": 16, "FP8_PB_WO": 1}
FORMATS = tuple(_GROUP)
WITH_GLOBAL = frozenset(["NVFP4", "W4A16_NVFP4"])  # one scale for a whole matrix, beside those of blocks
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
    places = {
        suffix: torch.empty(spec.shape, dtype=spec.dtype, device=whole.device)
        for suffix, spec in formats.get(name).layout(tuple(whole.shape)).items()
    }
    with on_device_of(whole):
        if name in WITH_GLOBAL:
            shape, largest = _given(whole, amax)
            places["weight_scale_2"] = torch.empty(shape, dtype=torch.float32, device=whole.device)
            _nvfp4(whole, largest, places, fault)
        else:
            _WRITERS[name](whole, places, fault)
    return Stored(name, places, tuple(whole.shape))


def launch_into(name: str, stack: Tensor, places: Mapping[str, Tensor], fault: Tensor, share: int) -> None:
    """Encodes matrices [n, N, K] to contiguous tensors [n, ...], by suffix, in one launch or two.

    `share` matrices that follow each other share a global scale, in a format that has one.
    """
    with on_device_of(stack):
        if name in WITH_GLOBAL:
            _nvfp4(stack, None, places, fault, share)
        else:
            _WRITERS[name](stack, places, fault)


def _mxfp8(whole: Tensor, places: Mapping[str, Tensor], fault: Tensor) -> None:
    from intarsia.kernels.encode import triton_encode as kernels

    exponents = places["weight_scale"]
    groups = exponents.numel()
    each = _ELEMENTS // 32
    kernels.encode_mxfp8[(-(-groups // each),)](
        whole,
        ceil_log2_carry(whole.device),
        places["weight"].view(torch.uint8),
        exponents,
        fault.view(torch.uint8),
        groups,
        GROUPS=each,
        NATIVE=not interpreting(),
        num_warps=_WARPS,
    )


def _fp8_block(whole: Tensor, places: Mapping[str, Tensor], fault: Tensor) -> None:
    from intarsia.kernels.encode import triton_encode as kernels

    *lead, rows, columns = whole.shape
    bands, blocks = -(-rows // SIDE), -(-columns // SIDE)
    grid = (blocks, bands, whole.shape[0] if lead else 1)
    kernels.encode_fp8_blocks[grid](
        whole,
        places["weight"].view(torch.uint8),
        places["weight_scale"],
        fault.view(torch.uint8),
        rows,
        columns,
        SMALLEST=AMAX_MIN,
        SIDE=SIDE,
        NATIVE=not interpreting(),
        num_warps=_BLOCK_WARPS,
    )


_WRITERS = {"MXFP8": _mxfp8, "FP8_PB_WO": _fp8_block}


def _given(whole: Tensor, amax: Tensor | float | None) -> tuple[tuple[int, ...], Tensor | None]:
    """The shape of the global scales, and the bits of the magnitudes behind them where those are given."""
    lead = tuple(whole.shape[:-2])
    if amax is None:
        return lead, None
    given = torch.as_tensor(amax, dtype=torch.float32, device=whole.device)
    shape = tuple(given.shape) if given.ndim else lead
    return shape, given.expand(shape).reshape(-1).contiguous().view(torch.int32)


def _nvfp4(
    whole: Tensor, largest: Tensor | None, places: Mapping[str, Tensor], fault: Tensor, share: int = 1
) -> None:
    from intarsia.kernels.encode import triton_encode as kernels

    scales, scale_2 = places["weight_scale"], places["weight_scale_2"]
    runs = scale_2.numel()
    overlap = largest is None and not interpreting()
    if largest is None:
        largest = torch.zeros(runs // share, dtype=torch.int32, device=whole.device)
        size = whole.numel() // largest.numel()
        grid = (-(-size // _AMAX_ELEMENTS), largest.numel())
        kernels.largest_magnitude[grid](
            whole, largest, size, SIZE=_AMAX_ELEMENTS, OVERLAP=overlap, num_warps=_AMAX_WARPS
        )
    groups = scales.numel() // runs
    each = _NVFP4_GROUPS
    kernels.encode_nvfp4[(-(-groups // each), runs)](
        whole,
        largest,
        places["weight"].view(torch.int32),
        scales.view(torch.uint8),
        scale_2,
        fault.view(torch.uint8),
        groups,
        GROUPS=each,
        SHARE=share,
        OVERLAP=overlap,
        NATIVE=not interpreting(),
        num_warps=_NVFP4_WARPS,
        **({"launch_pdl": True} if overlap else {}),
    )
