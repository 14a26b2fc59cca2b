"""The networks that the tests run: small, random, and different in every size that the formulas mention."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.models.glm5_next.model import Glm5NextModel
from tests.models.oracle import (
    network,
    random_tensors,
    random_tokens,
    tiny_config,
    transformers_logits,
    transformers_model,
)

STREAMS, LENGTH = 3, 168

POOLS_OF_4 = tiny_config()
"""The real pattern: KDA with MLA as every fourth layer, four residual streams."""

POOLS_OF_2 = tiny_config(
    "mkkmk",
    dense=1,
    hidden_size=48,
    hc_mult=2,
    hc_sinkhorn_iters=9,
    index_kpool=2,
    index_topk=12,
    index_n_heads=12,
    index_head_dim=20,
    num_attention_heads=3,
    qk_nope_head_dim=20,
    v_head_dim=28,
    q_lora_rank=36,
    kv_lora_rank=24,
    linear_num_heads=2,
    linear_head_dim=24,
    linear_conv_kernel_dim=3,
    linear_lower_bound=-3.0,
    n_routed_experts=6,
    num_experts_per_tok=3,
    n_shared_experts=2,
    moe_intermediate_size=40,
    intermediate_size=72,
    swiglu_limit=7.0,
    routed_scaling_factor=1.5,
    rms_norm_eps=1e-6,
)
"""MLA first, two residual streams, a convolution of three taps, two shared experts, odd sizes."""

POOLS_OF_8 = tiny_config(
    "kmmk",
    dense=2,
    hidden_size=80,
    hc_mult=3,
    hc_eps=1e-5,
    index_kpool=8,
    index_topk=32,
    index_n_heads=24,
    index_head_dim=8,
    num_attention_heads=5,
    qk_nope_head_dim=12,
    v_head_dim=12,
    q_lora_rank=28,
    kv_lora_rank=40,
    linear_num_heads=5,
    linear_head_dim=8,
    n_routed_experts=12,
    num_experts_per_tok=4,
    moe_intermediate_size=24,
    intermediate_size=100,
    vocab_size=160,
)
"""MLA layers beside each other, a dense one among them, three residual streams, many experts."""

SENSITIVE = tiny_config("kmkkm", dense=2)
"""For `sensitive_tensors`: every kind of layer, and few of them, so that rounding stays small."""


@dataclass(frozen=True)
class Case:
    """A network, the same in transformers' hands, and what that expects: logits [streams, T, V]."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]
    model: Glm5NextModel
    oracle: Any
    tokens: list[list[int]]
    expected: Tensor


def sensitive_tensors(config: Glm5NextConfig, seed: int) -> dict[str, Tensor]:
    """Random tensors for SENSITIVE in which every constant of the network decides about something.

    Activations are faint where a norm adds an epsilon. Channel 0 of the residual is a constant that no block
    writes to; layer 1 drives its gates far below zero with it. The streams are mixed by peaked matrices, for
    which Sinkhorn's iteration is slow. The last block hears its streams through weights of about 1e-6, and
    its norm amplifies what is left.
    """
    tensors = random_tensors(config, seed)
    streams, last = config.hc_mult, f"layers.{config.num_hidden_layers - 1}."
    factors = {
        "embed_tokens.weight": 0.02,
        "o_proj.weight": 0.02,
        "down_proj.weight": 0.012,
        "layers.1.mlp.down_proj.weight": 30.0,
        "layers.1.mlp.gate_proj.weight": 0.4,
        "q_proj.weight": 0.004,
        "k_proj.weight": 0.004,
        "v_proj.weight": 0.1,
        "q_a_proj.weight": 0.02,
        "kv_a_proj_with_mqa.weight": 0.02,
        "indexer.wk.weight": 0.002,
        last + "post_attention_layernorm.weight": 3e4,
    }
    for name, value in tensors.items():
        for suffix, factor in factors.items():
            if name.endswith(suffix):
                value *= factor
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            value[0] = 0
            if last in name and "mlp" in name:
                value *= 0.5
        elif name.endswith("embed_tokens.weight"):
            value[:, 0] = 0.05
        elif name.endswith("layers.1.mlp.gate_proj.weight"):
            value[:, 0] = -6
        elif name.endswith("dt_bias"):
            value += 3
            value /= 3
        elif name.endswith(("hc_attn_base", "hc_ffn_base")):
            value[streams : 2 * streams] *= 8
            value[2 * streams :] *= 24
            if name.endswith(last + "hc_ffn_base"):
                value[:streams] -= 13
    return tensors


def build(config: dict[str, Any], tensors: dict[str, Tensor], folder: Path, *, seed: int) -> Case:
    """Run transformers over random tokens once."""
    parsed = Glm5NextConfig.from_checkpoint_config(config)
    oracle = transformers_model(config, tensors, folder)
    tokens = random_tokens(parsed, STREAMS, LENGTH, seed)
    return Case(
        config, tensors, network(config, tensors), oracle, tokens, transformers_logits(oracle, tokens)
    )


def random_case(config: dict[str, Any], seed: int, folder: Path) -> Case:
    """A case in which every parameter is random."""
    return build(
        config, random_tensors(Glm5NextConfig.from_checkpoint_config(config), seed), folder, seed=seed
    )


def random_network(config: dict[str, Any], seed: int = 1, **options: Any) -> Glm5NextModel:
    """A network in which every parameter is random, without an oracle."""
    return network(config, random_tensors(Glm5NextConfig.from_checkpoint_config(config), seed), **options)
