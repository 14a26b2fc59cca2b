"""Launches of the Triton products with the key and value rows of each head."""

import torch
from torch import Tensor

from intarsia.kernels.choice import Case, offer
from intarsia.kernels.device import byte_view, interpreting, on_device_of, overlapped, wide
from intarsia.kernels.mla.case import Ranges
from intarsia.kernels.mla.launch import refuse_rows
from intarsia.kernels.weights import Weight

FORMATS = ("BF16", "F32", "MXFP8")
# Up to so many rows: rows and columns of a product's tile, warps. None touches the order of additions.
_PRODUCTS = ((16, 16, 128, 4), (64, 64, 128, 4), (None, 128, 128, 8))
_WIDE_PRODUCTS = ((None, 16, 64, 4),)
# The tensor core's instruction for 16 rows gets decoded weights in another order of K than that for 64 (an
# H200, Triton 3.6), so they have one size.
_DECODED_PRODUCTS = ((None, 64, 128, 4),)
_STEP, _STAGES = 64, 4  # columns of a step and steps in flight; the first is part of the order of additions
_WIDE_STEP, _WIDE_STAGES = 32, 2
# Up to so many rows weights are there before the rows. Columns of latents, or of values, of a program; warps.
_FEW_ROWS, _FEW_LATENTS, _FEW_VALUES = 16, (128, 8), (64, 8)


def refuse(case: Case) -> str:
    """Why the Triton products cannot run a case, or the empty string; shape: widths of keys, values and
    latents.
    """
    if case.formats[0] not in FORMATS:
        return f"no kernel for {case.formats[0]}; there is one for {', '.join(FORMATS)}"
    return refuse_rows(case)


offer("absorb_keys", refuse)
offer("expand_values", refuse)


def absorb(q: Tensor, kv_b: Weight, key: int, value: int, *, settled: bool = False) -> Tensor:
    """Queries [R, H, K], heads side by side, carried into latent space, [R, H, L]; `settled` as in
    `absorb_keys`.
    """
    from intarsia.kernels.mla import triton_heads as kernels

    matrix, scales = _tensors(kv_b)
    rows, heads, _ = q.shape
    latent = matrix.shape[1]
    if weights_first(kv_b, q.dtype, rows):
        return _absorb_few(q, matrix, key, value, settled=settled)
    out = torch.empty(rows, heads, latent, dtype=q.dtype, device=q.device)
    tokens, block, warps, step, stages, full = _product_shape(q.dtype, matrix.dtype, rows)
    block = min(block, latent)
    with on_device_of(q):
        kernels.absorb_rows[(latent // block, heads, -(-rows // tokens))](
            q,
            matrix,
            scales,
            out,
            rows,
            q.stride(0),
            H=heads,
            K=key,
            V=value,
            L=latent,
            NT=tokens,
            LB=block,
            BK=min(step, key),
            WIDE=full,
            STAGES=stages,
            num_warps=warps,
            SETTLED=settled,
            **overlapped(rows),
        )
    return out


def expand(latents: Tensor, kv_b: Weight, key: int, value: int) -> Tensor:
    """Attended latents [R, H, L], contiguous, turned into head outputs [R, H * V]."""
    from intarsia.kernels.mla import triton_heads as kernels

    matrix, scales = _tensors(kv_b)
    rows, heads, latent = latents.shape
    out = torch.empty(rows, heads * value, dtype=latents.dtype, device=latents.device)
    if weights_first(kv_b, latents.dtype, rows):
        _expand_few(latents, None, matrix, out, key, value)
        return out
    tokens, block, warps, step, stages, full = _product_shape(latents.dtype, matrix.dtype, rows)
    block = min(block if tokens > 16 else 64, value)
    with on_device_of(latents):
        kernels.expand_rows[(value // block, heads, -(-rows // tokens))](
            latents,
            matrix,
            scales,
            out,
            rows,
            H=heads,
            K=key,
            V=value,
            L=latent,
            NT=tokens,
            VB=block,
            BK=min(step, latent),
            WIDE=full,
            STAGES=stages,
            num_warps=warps,
            **overlapped(rows),
        )
    return out


def expand_ranges(ranges: Ranges, dtype: torch.dtype, kv_b: Weight, key: int, value: int) -> Tensor:
    """`expand` of what ranges give together, rounded to `dtype`; see `weights_first`."""
    rows, heads = ranges.parts.shape[:2]
    out = torch.empty(rows, heads * value, dtype=dtype, device=ranges.parts.device)
    _expand_few(ranges.parts, ranges, _tensors(kv_b)[0], out, key, value)
    return out


def weights_first(kv_b: Weight, dtype: torch.dtype, rows: int) -> bool:
    """Whether products of so many rows have weights ready before what they multiply is."""
    matrix, scales = _tensors(kv_b)
    return rows <= _FEW_ROWS and scales is None and (interpreting() or not wide(dtype, matrix.dtype))


def _absorb_few(q: Tensor, matrix: Tensor, key: int, value: int, *, settled: bool) -> Tensor:
    from intarsia.kernels.mla import triton_heads_few as kernels

    rows, heads, _ = q.shape
    latent = matrix.shape[1]
    out = torch.empty(rows, heads, latent, dtype=q.dtype, device=q.device)
    block, warps = _FEW_LATENTS
    block = min(block, latent)
    with on_device_of(q):
        kernels.absorb_few[(latent // block, heads)](
            q,
            matrix,
            out,
            rows,
            q.stride(0),
            H=heads,
            K=key,
            V=value,
            L=latent,
            LB=block,
            WIDE=wide(q.dtype, matrix.dtype),
            num_warps=warps,
            SETTLED=settled,
            **overlapped(rows),
        )
    return out


def _expand_few(
    latents: Tensor, ranges: Ranges | None, matrix: Tensor, out: Tensor, key: int, value: int
) -> None:
    """`latents` are those, or parts of ranges."""
    from intarsia.kernels.mla import triton_heads_few as kernels

    rows, heads = latents.shape[:2]
    block, warps = _FEW_VALUES
    block = min(block, value)
    with on_device_of(out):
        kernels.expand_few[(value // block, heads)](
            latents,
            ranges and ranges.stats,
            ranges and ranges.rows.starts,
            matrix,
            out,
            rows,
            ranges.rows.recurrent_segments if ranges else 0,
            H=heads,
            K=key,
            V=value,
            L=matrix.shape[1],
            VB=block,
            SPLITS=latents.shape[2] if ranges else 0,
            ROWS=rows if ranges else 0,
            WIDE=wide(out.dtype, matrix.dtype),
            num_warps=warps,
            **overlapped(rows),
        )


def _tensors(kv_b: Weight) -> tuple[Tensor, Tensor | None]:
    """Numbers or codes [H * (K + V), L], and the exponents of blocks of 32 columns if there are any."""
    if isinstance(kv_b, Tensor):
        return kv_b, None
    return kv_b["weight"], byte_view(kv_b["weight_scale"]) if kv_b.format == "MXFP8" else None


def _product_shape(
    dtype: torch.dtype, weight: torch.dtype, rows: int
) -> tuple[int, int, int, int, int, bool]:
    """Rows and columns of a tile, warps, columns of a step, steps in flight, and whether all is float32."""
    full = wide(dtype, weight)
    shapes = _WIDE_PRODUCTS if full else _DECODED_PRODUCTS if weight.itemsize == 1 else _PRODUCTS
    tokens, block, warps = next(rest for most, *rest in shapes if most is None or rows <= most)
    step, stages = (_WIDE_STEP, _WIDE_STAGES) if full else (_STEP, _STAGES)
    return tokens, block, warps, step, stages if tokens < 128 else 3, full
