"""The Triton experts' configuration per case, and their launches."""

from dataclasses import dataclass
from math import gcd

import torch
from torch import Tensor

from intarsia.kernels.choice import Case, offer
from intarsia.kernels.device import byte_view, on_device_of, wide, word_view
from intarsia.kernels.errors import KernelError
from intarsia.kernels.linear.launch import format_of
from intarsia.kernels.router import Routing
from intarsia.kernels.weights import Weight

_CODES = {"BF16": 0, "F32": 0, "MXFP8": 1, "NVFP4": 3, "W4A16_NVFP4": 3}
FORMATS = tuple(_CODES)

# Columns of a tile and tiles in flight. Part of a format's order of additions: one value whatever the rows.
_TILE = {"BF16": (64, 4), "F32": (32, 2), "MXFP8": (128, 4), "NVFP4": (128, 5), "W4A16_NVFP4": (128, 5)}
_WIDE_TILE = {"BF16": (32, 2), "F32": (32, 2), "MXFP8": (32, 2), "NVFP4": (64, 2), "W4A16_NVFP4": (64, 2)}
_SMALLEST_TILE = {"BF16": 16, "F32": 16, "MXFP8": 32, "NVFP4": 64, "W4A16_NVFP4": 64}
_BLOCK_ROWS, _WARPS = 64, 4
# Pairs of one expert a program takes, by the mean number of pairs an expert. For BF16 weights it touches no
# bits. For decoded ones 64 pairs gave other bits than 8 (an H200, Triton 3.6), so they always take one size.
_PAIRS = ((4, 8), (24, 32), (None, 64))
_DECODED_PAIRS = ((None, 32),)
_WIDE_PAIRS = ((None, 16),)
# Programs that fill a GPU: the blocks are dealt to so many, without the host knowing how many blocks
# there are.
_PROGRAMS = 512
_COMBINE_SIZE = 512


@dataclass(frozen=True, slots=True)
class Blocks:
    """Pairs grouped by expert: `order` [pairs] and, per block, its expert, first place in `order` and
    count.
    """

    order: Tensor
    expert: Tensor
    start: Tensor
    count: Tensor
    total: Tensor
    pairs_each: int


def refuse(case: Case) -> str:
    """Why the Triton experts cannot run a case, or the empty string; shape: experts, inner width, width."""
    gate_up, down = case.formats
    if gate_up != down:
        return f"gate and up in {gate_up}, down in {down}; one format is needed"
    if gate_up not in FORMATS:
        return f"no kernel for {gate_up}; there is one for {', '.join(FORMATS)}"
    if case.dtype not in (torch.bfloat16, torch.float32):
        return f"rows of {str(case.dtype).removeprefix('torch.')}; bfloat16 or float32 is needed"
    smallest = _SMALLEST_TILE[gate_up]
    if any(columns % smallest for columns in case.shape[1:]):
        return f"widths {case.shape[1]} and {case.shape[2]}; multiples of {smallest} are needed"
    return ""


offer("experts", refuse)


def launch(
    x: Tensor, routing: Routing, gate_up: Weight, down: Weight, limit: float, plus: Tensor | None = None
) -> Tensor:
    """Weighted sum, float32 [R, D], of each row's experts, and `plus` where given; padding rows get zeros
    and `plus`.

    gate_up [E, 2I, D] and down [E, D, I]. What SwiGLU gives is rounded to the dtype of `x`; everything
    else is float32. The host looks at no value.
    """
    from intarsia.kernels.experts import triton_experts as kernels

    rows, top = routing.experts.shape
    width = x.shape[1]
    chosen = routing.experts.contiguous()
    with on_device_of(x):
        blocks = _group(kernels, chosen, gate_up.shape[0], _pairs_each(rows * top, gate_up, x))
        inner = torch.empty(rows * top, gate_up.shape[1] // 2, dtype=x.dtype, device=x.device)
        _product(kernels, x.contiguous(), gate_up, blocks, inner, top=top, limit=limit, gated=True)
        parts = torch.empty(rows * top, width, dtype=torch.float32, device=x.device)
        _product(kernels, inner, down, blocks, parts, top=top, limit=limit, gated=False)
        out = torch.empty(rows, width, dtype=torch.float32, device=x.device)
        kernels.combine[(rows, -(-width // _COMBINE_SIZE))](
            parts,
            chosen,
            routing.weights.contiguous(),
            parts if plus is None else plus.contiguous(),
            out,
            width,
            TOP=top,
            PLUS=plus is not None,
            SIZE=_COMBINE_SIZE,
            OVERLAP=False,
            num_warps=4,
        )
    return out


def refuse_swiglu(case: Case) -> str:
    """Why the Triton SwiGLU cannot run a case, or the empty string."""
    if case.dtype not in (torch.bfloat16, torch.float32):
        return f"rows of {str(case.dtype).removeprefix('torch.')}; bfloat16 or float32 is needed"
    return ""


offer("swiglu", refuse_swiglu)


def launch_swiglu(gate_up: Tensor, limit: float) -> Tensor:
    """silu(min(g, limit)) * clamp(u, -limit, limit) of `gate_up` [R, 2I] -> [R, I]; float32, rounded once."""
    from intarsia.kernels.experts import triton_experts as kernels

    rows, both = gate_up.shape
    width = both // 2
    out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    with on_device_of(gate_up):
        kernels.swiglu_rows[(rows, -(-width // _COMBINE_SIZE))](
            gate_up.contiguous(), out, float(limit), N=width, SIZE=_COMBINE_SIZE, num_warps=4
        )
    return out


def _pairs_each(pairs: int, weight: Weight, x: Tensor) -> int:
    name = format_of(weight)
    table = _PAIRS if name == "BF16" else _DECODED_PAIRS
    if wide(x.dtype) or name == "F32":
        table = _WIDE_PAIRS
    mean = pairs / weight.shape[0]
    return next(each for most, each in table if most is None or mean <= most)


def _group(kernels, experts: Tensor, count: int, each: int) -> Blocks:  # type: ignore[no-untyped-def]
    pairs = experts.numel()
    most = min(pairs, count + pairs // each + 1)
    sizes = (pairs, most, most, most, 1)
    numbers = torch.empty(sum(sizes), dtype=torch.int32, device=experts.device)
    order, expert, start, number, total = torch.split_with_sizes(numbers, sizes)
    bins = 1 << count.bit_length()
    chunk = max(16, min(1024, 1 << (pairs - 1).bit_length()))
    kernels.group_pairs[(count,)](
        experts, order, expert, start, number, total, pairs, NT=each, BINS=bins, CHUNK=chunk, num_warps=4
    )
    return Blocks(order, expert, start, number, total, each)


def _product(  # type: ignore[no-untyped-def]
    kernels, x: Tensor, weight: Weight, blocks: Blocks, out: Tensor, *, top: int, limit: float, gated: bool
) -> None:
    name = format_of(weight)
    codes, scale, scale_2, parts = _tensors(weight)
    full = wide(x.dtype, codes.dtype)
    tile, stages = (_WIDE_TILE if full else _TILE)[name]
    _, n, k = weight.shape
    tiles = -(-n // _BLOCK_ROWS)
    kernels.expert_rows[(tiles, max(1, _PROGRAMS // tiles))](
        x,
        codes,
        scale,
        scale_2,
        blocks.order,
        blocks.expert,
        blocks.start,
        blocks.count,
        blocks.total,
        out,
        n,
        float(limit),
        K=k,
        GATED=gated,
        TOP=top,
        FORMAT=_CODES[name],
        PARTS=parts,
        BN=_BLOCK_ROWS,
        BK=gcd(k, tile),
        NT=blocks.pairs_each,
        WIDE=full,
        STAGES=stages,
        num_warps=_WARPS,
    )


def _tensors(weight: Weight) -> tuple[Tensor, Tensor, Tensor, int]:
    """Codes, block scales, global scales [E * parts] and parts; absent tensors are the codes.

    Raises KernelError for a stack that is not contiguous.
    """
    tensors = [weight] if isinstance(weight, Tensor) else list(weight.values())
    if not all(tensor.is_contiguous() for tensor in tensors):
        raise KernelError("experts", found="a stack that is not contiguous", action="pass a contiguous one")
    if isinstance(weight, Tensor):
        return weight, weight, weight, 1
    codes = word_view("experts", weight["weight"])
    if weight.format in ("BF16", "F32"):
        return codes, codes, codes, 1
    if weight.format == "MXFP8":
        return codes, byte_view(next(weight[s] for s in weight if s != "weight")), codes, 1
    scale_2 = weight["weight_scale_2"]
    experts = weight.shape[0]
    if scale_2.ndim == 0:
        scale_2 = scale_2.expand(experts).contiguous()
    return codes, byte_view(weight["weight_scale"]), scale_2, scale_2.numel() // experts
