"""Sabotages of embedding, residual streams, norms, feed-forward and head."""

import torch
from torch.nn.functional import silu

from intarsia.kernels.hyper_connection import HyperMix
from tests.models.sabotage import (
    EXPERTS,
    HYPER,
    HYPER_SITE,
    LINEAR_SWIGLU,
    MODEL,
    both,
    constant,
    eps,
    norm_at,
    setting,
    swap,
    weights,
)
from tests.models.variants import mixing, routing


def _halves(gate_up):
    return gate_up.float().chunk(2, -1)


def _clamped_both_ways(_):
    return lambda x, limit: silu(_halves(x)[0].clamp(-limit, limit)) * _halves(x)[1].clamp(-limit, limit)


def _clamped_after_silu(_):
    return lambda x, limit: silu(_halves(x)[0]).clamp(max=limit) * _halves(x)[1].clamp(-limit, limit)


def _gate_not_clamped(_):
    return lambda x, limit: silu(_halves(x)[0]) * _halves(x)[1].clamp(-limit, limit)


def _up_not_clamped(_):
    return lambda x, limit: silu(_halves(x)[0].clamp(max=limit)) * _halves(x)[1]


def _up_clamped_from_above(_):
    return lambda x, limit: silu(_halves(x)[0].clamp(max=limit)) * _halves(x)[1].clamp(max=limit)


def _sigmoid_gate(_):
    return lambda x, limit: torch.sigmoid(_halves(x)[0].clamp(max=limit)) * _halves(x)[1].clamp(-limit, limit)


def _halves_swapped(swiglu):
    return lambda x, limit: swiglu(torch.cat(x.chunk(2, -1)[::-1], -1), limit)


SWIGLU = {
    "gate_clamped_from_below_too": _clamped_both_ways,
    "gate_clamped_after_silu": _clamped_after_silu,
    "gate_not_clamped": _gate_not_clamped,
    "up_not_clamped": _up_not_clamped,
    "up_clamped_only_from_above": _up_clamped_from_above,
    "sigmoid_instead_of_silu": _sigmoid_gate,
    "gate_and_up_swapped": _halves_swapped,
}

FEED_FORWARDS = {
    "limit_lower": setting(swiglu_limit=9.5),
    "limit_higher": setting(swiglu_limit=10.5),
    **{
        name: both(swap(f"{LINEAR_SWIGLU}.activate", how), swap(f"{EXPERTS}.swiglu", how))
        for name, how in SWIGLU.items()
    },
    "dense_and_shared_not_clamped": swap(f"{LINEAR_SWIGLU}.activate", _gate_not_clamped),
    "routed_not_clamped": swap(f"{EXPERTS}.swiglu", _gate_not_clamped),
    "router_bias_weighs": routing(bias_weighs=True),
    "router_bias_does_not_choose": routing(bias_chooses=False),
    "router_not_normalised": routing(normalised=False),
    "router_softmax": routing(score=lambda logits: torch.softmax(logits, -1)),
    "router_bias_sign": weights("e_score_correction_bias", torch.neg),
    "routed_scaling_left_out": setting(routed_scaling_factor=1.0),
    "one_expert_less": setting(num_experts_per_tok=1),
    "one_expert_more": setting(num_experts_per_tok=3),
    "shared_expert_scaled": weights("shared_experts.down", lambda w: w * 2.5),
    "shared_expert_left_out": weights("shared_experts.down", torch.zeros_like),
}


def _coefficients(change):
    return lambda update: lambda streams, y, c: update(streams, y, HyperMix(*change(c.pre, c.post, c.mixing)))


HYPER_CONNECTIONS = {
    "sinkhorn_19": setting(hc_sinkhorn_iters=19),
    "sinkhorn_21": setting(hc_sinkhorn_iters=21),
    "sinkhorn_rows_first": mixing(rows_first=True),
    "hc_eps": setting(hc_eps=2e-6),
    "hc_eps_zero": setting(hc_eps=1e-30),
    "eps_of_pre_left_out": mixing(pre_eps=0.0),
    "eps_of_softmax_left_out": mixing(softmax_eps=0.0),
    "eps_of_sinkhorn_left_out": mixing(sinkhorn_eps=0.0),
    "eps_of_the_mix_norm": mixing(norm_eps=1e-6),
    "mix_norm_left_out": mixing(norm="none"),
    "mix_norm_per_stream": mixing(norm="stream"),
    "softmax_over_columns": mixing(softmax_dim=-2),
    "pre_and_post_swapped": mixing(order=(1, 0, 2)),
    "scales_of_pre_and_post_swapped": mixing(scales=(1, 0, 2)),
    "scales_of_post_and_mix_swapped": mixing(scales=(0, 2, 1)),
    "post_multiplier": constant(f"{HYPER}.reference.POST_MULTIPLIER", 1.0),
    "mixing_transposed": swap(
        f"{HYPER_SITE}.update", _coefficients(lambda p, q, m: (p, q, m.transpose(1, 2)))
    ),
    "mixing_left_out": swap(
        f"{HYPER_SITE}.update", _coefficients(lambda p, q, m: (p, q, torch.eye(m.shape[1]).expand_as(m)))
    ),
    "attention_base_left_out": weights("hc_attn_base", torch.zeros_like),
    "mlp_base_left_out": weights("hc_ffn_base", torch.zeros_like),
    "merged_by_sum": swap(f"{HYPER_SITE}.merge", lambda merge: lambda x: merge(x) * x.shape[1]),
    "merged_from_the_first_stream": swap(f"{HYPER_SITE}.merge", lambda _: lambda x: x[:, 0]),
}


def _without_norm(norm):
    return lambda x, weight, _: x * weight


def _layer_norm(norm):
    return lambda x, weight, eps: norm(x - x.mean(-1, keepdim=True), weight, eps)


NORMS = {
    f"{rule}_{at}": norm_at(at, how)
    for at in ("input_layernorm", "post_attention_layernorm", "q_a_layernorm", "kv_a_layernorm", "norm")
    for rule, how in {"eps": eps(1e-6), "mean_removed": _layer_norm, "left_out": _without_norm}.items()
} | {
    f"weight_left_out_{at}": weights(at, torch.ones_like)
    for at in (
        "input_layernorm",
        "post_attention_layernorm",
        "q_a_layernorm",
        "kv_a_layernorm",
        "norm",
        "o_norm",
    )
}


REST = {
    "embedding_scaled": swap(f"{MODEL}.embed", lambda f: lambda t, w, d: f(t, w, d) * w.shape[1] ** 0.5),
    "embedding_of_the_next_id": weights("embed_tokens", lambda w: w.roll(1, 0)),
    "head_rows_shifted": weights("lm_head", lambda w: w.roll(1, 0)),
}
