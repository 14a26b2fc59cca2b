"""What a `glm5_next` checkpoint's `config.json` says about the network, checked before it is believed.

A key that changes the arithmetic is either a field here or must hold the one value the network implements.
Keys that do not (initialiser ranges, plans for other runtimes, dropout while training) are ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from intarsia.core.errors import Violation
from intarsia.families.errors import ConfigError
from intarsia.families.fields import Fields

AttentionKind = Literal["kda", "mla"]
MlpKind = Literal["dense", "sparse"]


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """Sizes of the vision tower; enough to list its tensors, which text generation does not use."""

    depth: int
    hidden_size: int
    num_heads: int
    intermediate_size: int
    out_hidden_size: int
    projection_intermediate_size: int
    in_channels: int
    patch_size: int
    temporal_patch_size: int
    spatial_merge_size: int


@dataclass(frozen=True, slots=True)
class Glm5NextConfig:
    """The numbers of a `glm5_next` text network. Names follow the checkpoint's keys where one exists.

    `attention_kinds` and `mlp_kinds` have one entry a main layer; an MTP layer (index `num_hidden_layers` and
    up) always has MLA and routed experts.
    """

    hidden_size: int
    num_hidden_layers: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    attention_kinds: tuple[AttentionKind, ...]
    mlp_kinds: tuple[MlpKind, ...]
    # MLA
    num_attention_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    v_head_dim: int
    # pooled sparse indexer
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    index_kpool: int
    # KDA
    linear_num_heads: int
    linear_head_dim: int
    linear_conv_kernel_dim: int
    linear_lower_bound: float
    # hyper-connections
    hc_mult: int
    hc_eps: float
    hc_sinkhorn_iters: int
    # feed-forward
    intermediate_size: int
    moe_intermediate_size: int
    n_routed_experts: int
    num_experts_per_tok: int
    n_shared_experts: int
    routed_scaling_factor: float
    swiglu_limit: float
    # MTP
    num_nextn_predict_layers: int
    index_share_for_mtp_iteration: bool
    # tokens
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None
    vision: VisionConfig | None = None

    @classmethod
    def from_checkpoint_config(cls, config: Mapping[str, Any]) -> "Glm5NextConfig":
        """Read a parsed `config.json`, nested (`text_config`) or flat.

        Raises ConfigError with every key that is missing, malformed, contradicts another one or asks for
        arithmetic that the network does not implement.
        """
        # Here, because reading.py builds these classes.
        from intarsia.families.glm5_next.reading import read_config

        violations: list[Violation] = []
        result = read_config(Fields(config, "config.json", violations))
        if violations:
            raise ConfigError("config.json", violations)
        return result

    @property
    def kda_layers(self) -> tuple[int, ...]:
        """Main layers with linear attention."""
        return tuple(i for i, kind in enumerate(self.attention_kinds) if kind == "kda")

    @property
    def mla_layers(self) -> tuple[int, ...]:
        """Main layers with latent attention and an indexer."""
        return tuple(i for i, kind in enumerate(self.attention_kinds) if kind == "mla")

    @property
    def mtp_layers(self) -> tuple[int, ...]:
        """Indices under which the checkpoint stores the MTP layers."""
        return tuple(range(self.num_hidden_layers, self.num_hidden_layers + self.num_nextn_predict_layers))

    @property
    def linear_width(self) -> int:
        """Channels of each of KDA's q, k and v."""
        return self.linear_num_heads * self.linear_head_dim

    @property
    def shared_width(self) -> int:
        """Width of the shared expert: `n_shared_experts` experts fused into one matrix."""
        return self.moe_intermediate_size * self.n_shared_experts

    def attention_kind(self, layer: int) -> AttentionKind:
        """Attention of a layer, MTP layers included."""
        return self.attention_kinds[layer] if layer < self.num_hidden_layers else "mla"

    def mlp_kind(self, layer: int) -> MlpKind:
        """Feed-forward of a layer, MTP layers included."""
        return self.mlp_kinds[layer] if layer < self.num_hidden_layers else "sparse"
