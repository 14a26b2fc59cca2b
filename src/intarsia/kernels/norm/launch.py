"""Launch of the norms' Triton kernel."""

import torch
from torch import Tensor

from intarsia.kernels.choice import Case, offer
from intarsia.kernels.device import on_device_of, power_of_two

WIDEST = 16384


def refuse(case: Case) -> str:
    """Why the Triton norm cannot run a case, or the empty string; shape: the width of a row."""
    if case.dtype not in (torch.bfloat16, torch.float32):
        return f"rows of {str(case.dtype).removeprefix('torch.')}; bfloat16 or float32 is needed"
    return "" if case.shape[-1] <= WIDEST else f"rows of {case.shape[-1]} columns; at most {WIDEST} fit"


offer("norm", refuse)


def launch(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor | None = None) -> Tensor:
    """RMS norm of rows [.., D], layer norm if there is a bias; `out`, contiguous, in the dtype of `x`."""
    from intarsia.kernels.norm import triton_norm as kernels

    width = x.shape[-1]
    flat = x.reshape(-1, width)
    flat = flat if flat.stride(-1) == 1 else flat.contiguous()
    if out is None:
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    with on_device_of(x):
        kernels.norm_rows[(flat.shape[0],)](
            flat,
            weight,
            bias,
            out,
            flat.stride(0),
            float(eps),
            WIDTH=width,
            SIZE=power_of_two(width),
            num_warps=warps_for(width),
        )
    return out


def warps_for(width: int) -> int:
    """Warps for one row: part of the order of additions, so a function of the width alone."""
    return max(1, min(8, power_of_two(width) // 512))
