"""What the rows of a step leave for later ones in an MLA layer, and their normed query latents."""

from dataclasses import dataclass

import torch
from torch import Tensor

from intarsia.kernels.choice import TRITON, Case, choose, offer
from intarsia.kernels.device import on_device_of, overlapped, power_of_two
from intarsia.kernels.indexer.pooling import pool_keys
from intarsia.kernels.mla.latents import write_latents
from intarsia.kernels.norm import layer_norm, rms_norm
from intarsia.kernels.rows import Rows


@dataclass(frozen=True, slots=True)
class Latents:
    """Raw query latents [R, Q] and latents [R, L], the weights of their norms, and the cache [pages + 1,
    page, L] with its scales where it is FP8.
    """

    query: Tensor
    latent: Tensor
    query_norm: Tensor
    latent_norm: Tensor
    eps: float
    cache: Tensor
    scales: Tensor | None = None


@dataclass(frozen=True, slots=True)
class IndexKeys:
    """Raw keys and gates [R, D] of the indexer, the layer norm of the keys, the gates' biases by place in a
    group, and where they go: `tail` and `pooled` as in `pool_keys`.
    """

    keys: Tensor
    gates: Tensor
    norm: Tensor
    norm_bias: Tensor
    eps: float
    ape: Tensor
    tail: Tensor
    pooled: Tensor


def refuse(case: Case) -> str:
    """Why the Triton kernel cannot run a case, or the empty string; shape: width of a latent, and width and
    group of the keys if there are any.
    """
    if case.dtype not in (torch.bfloat16, torch.float32):
        return f"rows of {str(case.dtype).removeprefix('torch.')}; bfloat16 or float32 is needed"
    if any(count & (count - 1) for count in case.shape):
        return f"widths and group {', '.join(map(str, case.shape))}; powers of two are needed"
    return ""


offer("enter_rows", refuse)


def enter_rows(latents: Latents, keys: IndexKeys | None, rows: Rows) -> Tensor:
    """Store normed latents and, if there are `keys`, pooled keys and raw ones; normed query latents [R, Q].

    Of padding rows nothing is stored, and what is returned for them is finite.
    """
    x = latents.query
    shape = (latents.latent.shape[-1], *((keys.keys.shape[-1], keys.ape.shape[0]) if keys else ()))
    if choose(Case("enter_rows", (), x.dtype, x.device, shape)) == TRITON:
        return launch(latents, keys, rows)
    query = rms_norm(x, latents.query_norm, latents.eps)
    latent = rms_norm(latents.latent, latents.latent_norm, latents.eps)
    write_latents(latents.cache, latents.scales, latent, rows)
    if keys:
        normed = layer_norm(keys.keys, keys.norm, keys.norm_bias, keys.eps)
        pool_keys(normed, keys.gates, keys.ape, keys.tail, keys.pooled, rows)
    return query


def launch(latents: Latents, keys: IndexKeys | None, rows: Rows) -> Tensor:
    """`enter_rows` in one kernel."""
    from intarsia.kernels.mla import triton_entry as kernels

    query, latent = latents.query, latents.latent
    count, width = query.shape
    segments = rows.starts.shape[0] - 1
    out = torch.empty(count, width, dtype=query.dtype, device=query.device)
    grid = (max(count, segments), 4) if keys else (count, 2)
    with on_device_of(query):
        kernels.enter_rows[grid](
            query,
            latent,
            keys and keys.keys,
            keys and keys.gates,
            latents.query_norm,
            latents.latent_norm,
            keys and keys.norm,
            keys and keys.norm_bias,
            keys and keys.ape,
            out,
            latents.cache,
            latents.scales,
            keys and keys.tail,
            keys and keys.pooled,
            rows.page_table,
            rows.positions,
            rows.streams,
            rows.starts,
            count,
            segments,
            query.stride(0),
            latent.stride(0),
            keys.keys.stride(0) if keys else 0,
            keys.gates.stride(0) if keys else 0,
            rows.page_table.shape[1],
            float(latents.eps),
            float(keys.eps) if keys else 0.0,
            Q=width,
            Q_SIZE=power_of_two(width),
            L=latent.shape[1],
            D=keys.keys.shape[1] if keys else 1,
            PAGE=latents.cache.shape[1],
            GROUP=keys.ape.shape[0] if keys else 1,
            RING=keys.tail.shape[1] if keys else 1,
            num_warps=4,
            **overlapped(count),
        )
    return out
