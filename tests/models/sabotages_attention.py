"""Sabotages of linear attention, latent attention and the indexer."""

from dataclasses import replace

import torch
from torch.nn.functional import conv1d, pad

from tests.models.sabotage import ATTENTION, CHOOSING, ENTRY, KDA_STEP, constant, setting, swap, weights
from tests.models.variants import delta_rule


def _unit(which, change):
    """`unit_heads` changed for q (first call of a layer) or k (second call)."""

    def wrap(unit):
        calls = []

        def unit_heads(x, heads):
            calls.append(0)
            return change(unit, x, heads) if len(calls) % 2 == which else unit(x, heads)

        return unit_heads

    return swap(f"{KDA_STEP}.unit_heads", wrap)


def _eps_1e_5(unit, x, heads):
    split = x.view(x.shape[0], heads, -1)
    return split * torch.rsqrt(split.square().sum(-1, keepdim=True) + 1e-5)


def _mean(unit, x, heads):
    return unit(x, heads) * (x.shape[1] / heads) ** 0.5


def _plain(unit, x, heads):
    return x.view(x.shape[0], heads, -1)


def _without_silu(_):
    """The convolution of a single prompt, not activated."""

    def raw(x, taps, window, rows):
        count = int(rows.starts[-1])
        columns = pad(x[:count].T, (taps.shape[1] - 1, 0))
        out = torch.zeros(x.shape)
        out[:count] = conv1d(columns.unsqueeze(0), taps.unsqueeze(1), groups=taps.shape[0])[0].T
        return out

    return raw


Q, K = 1, 0
KDA = {
    "q_not_scaled": _unit(Q, _mean),
    "q_eps": _unit(Q, _eps_1e_5),
    "k_eps": _unit(K, _eps_1e_5),
    "k_not_unit": _unit(K, _plain),
    "unit_eps": constant("intarsia.kernels.kda.gates.UNIT_EPS", 1e-5),
    "lower_bound": setting(linear_lower_bound=-4.5),
    "a_log_sign": weights("A_log", torch.neg),
    "a_log_without_exp": weights("A_log", lambda w: w.abs().log()),
    "dt_bias_left_out": weights("dt_bias", torch.zeros_like),
    "dt_bias_after_the_rate": swap(
        f"{KDA_STEP}.log_decay",
        lambda f: lambda x, a, b, low: f(x, a, b / a.exp().repeat_interleave(b.shape[0] // a.shape[0]), low),
    ),
    "decay_per_head": swap(
        f"{KDA_STEP}.log_decay",
        lambda f: lambda *a: f(*a).mean(-1, keepdim=True).expand_as(f(*a)),
    ),
    "beta_left_out": swap(
        f"{KDA_STEP}.scan",
        lambda f: lambda q, k, v, g, b, *rest: f(q, k, v, g, torch.ones_like(b), *rest),
    ),
    "beta_doubled": swap(
        f"{KDA_STEP}.scan", lambda f: lambda q, k, v, g, b, *rest: f(q, k, v, g, 2 * b, *rest)
    ),
    "decay_after_the_write": delta_rule(decay_late=True),
    "decay_on_values": delta_rule(decay_values=True),
    "read_before_the_write": delta_rule(read_early=True),
    "write_not_corrected": delta_rule(corrected=False),
    "taps_reversed": weights("conv1d", lambda w: w.flip(-1)),
    "silu_left_out": swap(f"{KDA_STEP}.convolve", _without_silu),
    "o_norm_eps": swap(f"{KDA_STEP}.gated_norm", lambda f: lambda o, z, w, _, dtype: f(o, z, w, 1e-6, dtype)),
    "o_norm_over_all_heads": swap(
        f"{KDA_STEP}.gated_norm",
        lambda f: lambda o, z, w, e, dtype: f(o.flatten(1).unsqueeze(1), z, w.repeat(o.shape[1]), e, dtype),
    ),
    "gate_silu": swap(f"{KDA_STEP}.gated_norm", lambda f: lambda o, z, *rest: f(o, z, *rest) * z),
    "gate_left_out": swap(
        f"{KDA_STEP}.gated_norm", lambda f: lambda o, z, *rest: f(o, torch.full_like(z, 50.0), *rest)
    ),
    "gate_before_the_norm": swap(
        f"{KDA_STEP}.gated_norm",
        lambda f: lambda o, z, *rest: f(o * torch.sigmoid(z).view(o.shape), torch.full_like(z, 50.0), *rest),
    ),
}


def _kv_b(change):
    def apply(bench):
        heads, key, value = (
            bench.config.num_attention_heads,
            bench.config.qk_nope_head_dim,
            bench.config.v_head_dim,
        )
        weights("kv_b_proj", lambda w: change(w, heads, key, value).reshape(w.shape))(bench)

    return apply


def _values_first(w, heads, key, value):
    return torch.cat(w.view(heads, key + value, -1).split([key, value], 1)[::-1], 1)


def _keys_of_all_heads_first(w, heads, key, value):
    keys, values = w.split([heads * key, heads * value])
    return torch.cat([keys.view(heads, key, -1), values.view(heads, value, -1)], 1)


MLA = {
    "scale_of_the_latent": swap(
        f"{ATTENTION}.attend_values",
        lambda f: lambda q, c, s, r, _, *rest, **__: f(q, c, s, r, c.shape[-1] ** -0.5, *rest),
    ),
    "scale_left_out": swap(
        f"{ATTENTION}.attend_values", lambda f: lambda q, c, s, r, _, *rest, **__: f(q, c, s, r, 1.0, *rest)
    ),
    "value_rows_before_key_rows": _kv_b(_values_first),
    "key_rows_of_all_heads_first": _kv_b(_keys_of_all_heads_first),
}


def _pooling(change):
    return swap(
        f"{ENTRY}.pool_keys",
        lambda f: lambda keys, gates, ape, *rest: f(*change(keys, gates, ape), *rest),
    )


def _selection(change):
    return swap(f"{CHOOSING}.select_tokens", change)


def _no_tail(select):
    def selected(scores, positions, top, group):
        out = select(scores, positions, top, group)
        return torch.cat([out[:, :top], torch.full_like(out[:, top:], -1)], 1)

    return selected


def _always_itself(select):
    def selected(scores, positions, top, group):
        out = select(scores, positions, top, group)
        itself = positions.to(torch.int32).unsqueeze(1)
        return torch.cat([out, itself.masked_fill((out == itself).any(1, keepdim=True), -1)], 1)

    return selected


def _seen(shift):
    return swap(
        f"{CHOOSING}.score_pools",
        lambda f: (
            lambda q, w, cache, rows, group: f(
                q, w, cache, replace(rows, positions=rows.positions + shift(group)), group
            )
        ),
    )


INDEXER = {
    "k_norm_eps": constant(f"{ATTENTION}.INDEX_NORM_EPS", 1e-5),
    "k_norm_weight_left_out": weights("indexer.k_norm", torch.ones_like),
    "k_norm_bias_left_out": weights("k_norm.bias", torch.zeros_like),
    "k_norm_keeps_the_mean": swap(
        f"{ENTRY}.layer_norm",
        lambda _: lambda x, w, b, e: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + e) * w + b,
    ),
    "ape_left_out": _pooling(lambda keys, gates, ape: (keys, gates, torch.zeros_like(ape))),
    "ape_reversed": _pooling(lambda keys, gates, ape: (keys, gates, ape.flip(0))),
    "gate_left_out": _pooling(lambda keys, gates, ape: (keys, torch.zeros_like(gates), ape)),
    "plain_mean": _pooling(lambda keys, gates, ape: (keys, torch.zeros_like(gates), torch.zeros_like(ape))),
    "one_softmax_for_all_channels": _pooling(
        lambda keys, gates, ape: (
            keys,
            gates.mean(-1, keepdim=True).expand_as(gates),
            ape.mean(-1, keepdim=True).expand_as(ape),
        )
    ),
    "head_weights_sign": weights("weights_proj", torch.neg),
    "head_weights_magnitude": swap(
        f"{CHOOSING}.score_pools", lambda f: lambda q, w, *rest: f(q, w.abs(), *rest)
    ),
    "head_weights_left_out": swap(
        f"{CHOOSING}.score_pools", lambda f: lambda q, w, *rest: f(q, torch.ones_like(w), *rest)
    ),
    # relu(x) - relu(-x) = x; what a row must not see stays at minus infinity.
    "relu_left_out": swap(
        f"{CHOOSING}.score_pools",
        lambda f: lambda q, *rest: (f(q, *rest) - f(-q, *rest)).nan_to_num(-torch.inf),
    ),
    "a_pool_is_seen_from_its_first_token": _seen(lambda group: group - 1),
    "a_pool_is_seen_after_its_last_token": _seen(lambda group: -1),
    "tail_left_out": _selection(_no_tail),
    "a_row_always_sees_itself": _selection(_always_itself),
    "one_pool_less": _selection(lambda f: lambda s, p, top, group: f(s, p, top - group, group)),
    "one_pool_more": _selection(lambda f: lambda s, p, top, group: f(s, p, top + group, group)),
    "lowest_scores": _selection(lambda f: lambda s, *rest: f(torch.where(s > -torch.inf, -s, s), *rest)),
}

# Positive factors on all scores of a row: no order depends on them. The kernel's tests see their values.
INVISIBLE = {
    "index_scale_of_heads": swap(
        f"{CHOOSING}.score_pools", lambda f: lambda q, w, *rest: f(q, w * w.shape[1] ** 0.5, *rest)
    ),
    "index_scale_of_keys": swap(
        f"{CHOOSING}.score_pools", lambda f: lambda q, *rest: f(q * q.shape[2] ** 0.5, *rest)
    ),
}
