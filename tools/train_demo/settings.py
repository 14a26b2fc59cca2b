"""The demo network's sizes, and the config.json that says them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

SPECIAL_TOKENS = (
    "<|endoftext|>", "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>",
    "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>",
    "<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
)  # fmt: skip
EOS_TOKENS = ("<|endoftext|>", "<|user|>", "<|observation|>")
TOKEN_ID = {name: index for index, name in enumerate(SPECIAL_TOKENS)}


@dataclass(frozen=True)
class NetworkSettings:
    """Sizes of a `glm5_next` text network; the defaults are the demo model's."""

    vocab_size: int = 4096
    hidden_size: int = 128
    num_layers: int = 8
    mla_layers: tuple[int, ...] = (3, 7)
    dense_layers: int = 3
    intermediate_size: int = 384
    experts: int = 12
    experts_per_token: int = 2
    moe_intermediate_size: int = 256
    routed_scaling_factor: float = 2.5
    swiglu_limit: float = 10.0
    kda_heads: int = 4
    kda_head_dim: int = 64
    conv_taps: int = 4
    gate_lower_bound: float = -5.0
    mla_heads: int = 4
    qk_head_dim: int = 64
    v_head_dim: int = 64
    q_lora_rank: int = 128
    kv_lora_rank: int = 64
    index_heads: int = 16
    index_head_dim: int = 32
    index_topk: int = 64
    pool: int = 4
    streams: int = 4
    sinkhorn_iterations: int = 20
    hc_eps: float = 1e-6
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 4096
    eos_token_ids: tuple[int, ...] = field(default=tuple(TOKEN_ID[t] for t in EOS_TOKENS))

    @property
    def index_pools(self) -> int:
        """Number of pools a query keeps."""
        return self.index_topk // self.pool

    def config(self, dtype: str = "bfloat16") -> dict[str, Any]:
        """The checkpoint's config.json."""
        layers = range(self.num_layers)
        kda = [i for i in layers if i not in self.mla_layers]
        text = {
            "model_type": "glm5_next_text",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "bos_token_id": None,
            "dtype": dtype,
            "eos_token_id": list(self.eos_token_ids),
            "pad_token_id": self.eos_token_ids[0],
            "first_k_dense_replace": self.dense_layers,
            "hc_eps": self.hc_eps,
            "hc_mult": self.streams,
            "hc_sinkhorn_iters": self.sinkhorn_iterations,
            "head_dim": 0,
            "hidden_act": "silu",
            "hidden_size": self.hidden_size,
            "index_head_dim": self.index_head_dim,
            "index_kpool": self.pool,
            "index_kpool_always_select_tail": True,
            "index_kpool_compress": True,
            "index_n_heads": self.index_heads,
            "index_share_for_mtp_iteration": True,
            "index_topk": self.index_topk,
            "indexer_rope_interleave": True,
            "indexer_types": ["full"] * self.num_layers,
            "initializer_range": 0.02,
            "intermediate_size": self.intermediate_size,
            "kv_lora_rank": self.kv_lora_rank,
            "layer_types": [
                "deepseek_sparse_attention" if i in self.mla_layers else "linear_attention" for i in layers
            ],
            "linear_attn_config": {
                "full_attn_layers": list(self.mla_layers),
                "kda_layers": kda,
                "gate_lower_bound": self.gate_lower_bound,
                "head_dim": self.kda_head_dim,
                "num_heads": self.kda_heads,
                "short_conv_kernel_size": self.conv_taps,
            },
            "linear_conv_kernel_dim": self.conv_taps,
            "linear_head_dim": self.kda_head_dim,
            "linear_lower_bound": self.gate_lower_bound,
            "linear_num_heads": self.kda_heads,
            "max_position_embeddings": self.max_position_embeddings,
            "mhc": True,
            "mla_use_nope": True,
            "mlp_layer_types": ["dense" if i < self.dense_layers else "sparse" for i in layers],
            "moe_intermediate_size": self.moe_intermediate_size,
            "moe_router_dtype": "float32",
            "n_group": 1,
            "n_routed_experts": self.experts,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "num_attention_heads": self.mla_heads,
            "num_experts_per_tok": self.experts_per_token,
            "num_hidden_layers": self.num_layers,
            "num_key_value_heads": self.mla_heads,
            "num_nextn_predict_layers": 1,
            "output_router_logits": False,
            "q_lora_rank": self.q_lora_rank,
            "qk_head_dim": self.qk_head_dim,
            "qk_nope_head_dim": self.qk_head_dim,
            "qk_rope_head_dim": 0,
            "rms_norm_eps": self.rms_norm_eps,
            "routed_scaling_factor": self.routed_scaling_factor,
            "router_aux_loss_coef": 0.001,
            "scoring_func": "sigmoid",
            "swiglu_limit": self.swiglu_limit,
            "tie_word_embeddings": False,
            "topk_group": 1,
            "topk_method": "noaux_tc",
            "use_cache": True,
            "v_head_dim": self.v_head_dim,
            "vocab_size": self.vocab_size,
        }
        return {
            "architectures": ["Glm5NextForConditionalGeneration"],
            "dtype": dtype,
            "model_type": "glm5_next",
            "eos_token_id": list(self.eos_token_ids),
            "pad_token_id": self.eos_token_ids[0],
            "tie_word_embeddings": False,
            "text_config": text,
        }
