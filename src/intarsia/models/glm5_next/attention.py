"""The two attentions of the network."""

import torch
from torch import Tensor

from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.kernels.aside import aside, branches, fork, join
from intarsia.kernels.indexer import choose_tokens
from intarsia.kernels.kda import (
    Cache,
    Matrices,
    Parameters,
    Projected,
    attention_step,
    beta_decay_gate,
    fits_beside,
)
from intarsia.kernels.linear import linear, linear_stack, linears
from intarsia.kernels.mla import IndexKeys, Latents, absorb_keys, attend_values, enter_rows
from intarsia.kernels.rows import Rows
from intarsia.models.glm5_next.state import KdaCache, MlaCache
from intarsia.models.glm5_next.weights import KdaWeights, MlaWeights

INDEX_NORM_EPS = 1e-6


def kda(x: Tensor, w: KdaWeights, config: Glm5NextConfig, cache: KdaCache, rows: Rows) -> Tensor:
    """Linear attention of normed rows [R, D]; float32 [R, D], the partial sum of a row-parallel output."""
    used = rows.starts[-1:]
    matrices = Matrices(b=w.b, f_a=w.f_a, g_a=w.g_a, f_b=w.f_b, g_b=w.g_b)
    if fits_beside(x, matrices):
        # The step is to begin early where q, k, v run: a join goes on where its first launch was.
        since = fork(x)
        raw = linear_stack(x, (w.q, w.k, w.v), used=used, releases=True)
        with aside(x, since=since):
            beta, decay, gate = beta_decay_gate(x, matrices, used=used)
    else:
        with aside(x):
            beta, decay, gate = beta_decay_gate(x, matrices, used=used)
        raw = linear_stack(x, (w.q, w.k, w.v), used=used)
    parameters = Parameters(
        taps=w.conv,
        a_log=w.a_log,
        dt_bias=w.dt_bias,
        norm=w.o_norm,
        lower_bound=config.linear_lower_bound,
        eps=config.rms_norm_eps,
    )
    projected = Projected(raw=raw, decay=decay, gate=gate, beta=beta)
    kept = Cache(memory=cache.memory, window=cache.window, current=cache.current)
    join(x)
    y = attention_step(projected, parameters, kept, rows, overlap=True)
    return linear(y, w.o, out_dtype=torch.float32, used=used, overlap=True)


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
    used = rows.starts[-1:]
    if selected is None:
        q, selected = select(x, w, config, cache, rows)
    else:
        raw, latent = linears(x, [w.q_a, w.kv_a], used=used)
        q_latent = enter_rows(_latents(raw, latent, w, config, cache), None, rows)
        q = _absorbed(linear(q_latent, w.q_b, used=used), w, config)
    # In a branched step what chose the tokens may be the launch right before this.
    early = not branches(x)
    y = attend_values(
        q, cache.latents, selected, rows, key**-0.5, w.kv_b, key, value, cache.latent_scales, early=early
    )
    return linear(y, w.o, out_dtype=torch.float32, used=used), selected


def select(
    x: Tensor, w: MlaWeights, config: Glm5NextConfig, cache: MlaCache, rows: Rows
) -> tuple[Tensor, Tensor]:
    """Absorbed queries [R, H, L] and the token positions int32 [R, S] that each row attends to; the rows' own
    latents and keys are stored first.
    """
    i, used = w.indexer, rows.starts[-1:]
    with aside(x):
        # Head weights in float32: rounding here reorders near ties.
        raw_keys, gates, head_weights = linears(
            x, [i.wk, i.gate, i.weights], [None, None, torch.float32], used=used
        )
    raw, latent = linears(x, [w.q_a, w.kv_a], used=used)
    join(x)
    keys = IndexKeys(
        raw_keys, gates, i.k_norm, i.k_norm_bias, INDEX_NORM_EPS, i.ape, cache.tail, cache.pooled
    )
    q_latent = enter_rows(_latents(raw, latent, w, config, cache), keys, rows)
    branched = branches(x)
    if not branched:
        q = linear(q_latent, w.q_b, used=used)
    queries = linear(q_latent, i.wq_b, used=used).view(-1, config.index_n_heads, config.index_head_dim)
    if branched:
        # After the queries: what chooses tokens takes long and little memory traffic, these two much.
        with aside(x):
            q = _absorbed(linear(q_latent, w.q_b, used=used), w, config)
    top, group = config.index_topk, config.index_kpool
    selected = choose_tokens(queries, head_weights, cache.pooled, rows, top, group)
    if not branched:
        q = _absorbed(q, w, config, settled=True)  # what chooses tokens was launched after what wrote q
    join(x)
    return q, selected


def _absorbed(q: Tensor, w: MlaWeights, config: Glm5NextConfig, *, settled: bool = False) -> Tensor:
    """Queries [R, H * K] of this rank's heads in latent space, [R, H, L]."""
    key, value = config.qk_nope_head_dim, config.v_head_dim
    return absorb_keys(q.view(q.shape[0], -1, key), w.kv_b, key, value, settled=settled)


def _latents(raw: Tensor, latent: Tensor, w: MlaWeights, config: Glm5NextConfig, cache: MlaCache) -> Latents:
    norms = (w.q_a_norm, w.kv_a_norm, config.rms_norm_eps)
    return Latents(raw, latent, *norms, cache.latents, cache.latent_scales)
