"""The two attentions of the network."""

import torch
from torch import Tensor

from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.kernels.indexer import pool_keys, score_pools, select_tokens
from intarsia.kernels.kda import Parameters, Projected, attention_step
from intarsia.kernels.linear import linear, linear_stack, linears, linears_apart
from intarsia.kernels.mla import absorb_keys, attend, expand_values, write_latents
from intarsia.kernels.norm import layer_norm, rms_norm
from intarsia.kernels.rows import Rows
from intarsia.models.glm5_next.state import KdaCache, MlaCache
from intarsia.models.glm5_next.weights import IndexerWeights, KdaWeights, MlaWeights

INDEX_NORM_EPS = 1e-6


def kda(x: Tensor, w: KdaWeights, config: Glm5NextConfig, cache: KdaCache, rows: Rows) -> Tensor:
    """Linear attention of normed rows [R, D]; float32 [R, D], the partial sum of a row-parallel output."""
    used = rows.starts[-1:]
    raw = linear_stack(x, (w.q, w.k, w.v), used=used)
    beta, f, g = linears(x, (w.b, w.f_a, w.g_a), (torch.float32, None, None), used=used)
    decay, gate = linears_apart((f, g), (w.f_b, w.g_b), used=used)
    parameters = Parameters(
        taps=w.conv,
        a_log=w.a_log,
        dt_bias=w.dt_bias,
        norm=w.o_norm,
        lower_bound=config.linear_lower_bound,
        eps=config.rms_norm_eps,
    )
    projected = Projected(raw=raw, decay=decay, gate=gate, beta=beta)
    y = attention_step(projected, parameters, cache.memory, cache.window, cache.current, rows)
    return linear(y, w.o, out_dtype=torch.float32, used=used)


def mla(
    x: Tensor,
    w: MlaWeights,
    config: Glm5NextConfig,
    cache: MlaCache,
    rows: Rows,
    selected: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Latent attention of normed rows [R, D]: float32 [R, D], the partial sum of a row-parallel output, and
    the token positions it attended to.

    With `selected` [R, S] given the indexer does not run, and nothing is written for it.
    """
    key, value = config.qk_nope_head_dim, config.v_head_dim
    q_latent = rms_norm(linear(x, w.q_a), w.q_a_norm, config.rms_norm_eps)
    latent = rms_norm(linear(x, w.kv_a), w.kv_a_norm, config.rms_norm_eps)
    write_latents(cache.latents, cache.latent_scales, latent, rows)
    if selected is None:
        selected = select(x, q_latent, w.indexer, config, cache, rows)
    q = linear(q_latent, w.q_b)
    q = absorb_keys(q.view(q.shape[0], -1, key), w.kv_b, key, value)  # this rank's heads
    attended = attend(q, cache.latents, selected, rows, key**-0.5, cache.latent_scales)
    return linear(expand_values(attended, w.kv_b, key, value), w.o, out_dtype=torch.float32), selected


def select(
    x: Tensor, q_latent: Tensor, w: IndexerWeights, config: Glm5NextConfig, cache: MlaCache, rows: Rows
) -> Tensor:
    """Token positions int32 [R, S] that each row attends to; the rows' own keys are pooled first."""
    heads, group = config.index_n_heads, config.index_kpool
    keys = layer_norm(linear(x, w.wk), w.k_norm, w.k_norm_bias, INDEX_NORM_EPS)
    pool_keys(keys, linear(x, w.gate), w.ape, cache.tail, cache.pooled, rows)
    queries = linear(q_latent, w.wq_b).view(-1, heads, config.index_head_dim)
    # In float32: rounding here reorders near ties.
    head_weights = linear(x, w.weights, out_dtype=torch.float32)
    scores = score_pools(queries, head_weights, cache.pooled, rows, group)
    return select_tokens(scores, rows.positions, config.index_topk, group)
