"""Every tensor of the unquantized `glm5_next` architecture: name, shape, dtype and what it belongs to.

Names are the checkpoint's. Matrices are `[out, in]`. The MTP layer and the vision tower are whole optional
groups (`part`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from intarsia.families.glm5_next.config import Glm5NextConfig, VisionConfig

Part = Literal["main", "mtp", "vision"]
Role = Literal["linear", "expert", "embedding", "router", "norm", "conv", "mix", "vector", "vision"]

TEXT = "model.language_model."
VISION = "model.visual."


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor. `dtype` is that of the published BF16 checkpoint (a safetensors dtype string).

    Quantized checkpoints store some plain tensors wider: convolutions, norms. Narrower would lose values.

    `role` says how it is used: only `linear` and `expert` matrices can be held in a quantized format.
    `module` is the class a summary counts it under, such as "KDA" or "routed experts".
    """

    shape: tuple[int, ...]
    dtype: Literal["BF16", "F32"]
    role: Role
    module: str
    part: Part = "main"
    layer: int | None = None

    @property
    def quantizable(self) -> bool:
        """True for matrices that multiply activations and may be stored in another number format."""
        return self.role in ("linear", "expert")


# suffix, shape, role, dtype
_Row = tuple[str, tuple[int, ...], Role, Literal["BF16", "F32"]]


def inventory(config: Glm5NextConfig, *, mtp: bool = True, vision: bool = True) -> dict[str, TensorSpec]:
    """Name -> TensorSpec of the whole architecture, layer by layer."""
    tensors = {
        "lm_head.weight": TensorSpec((config.vocab_size, config.hidden_size), "BF16", "linear", "lm head"),
        TEXT + "embed_tokens.weight": TensorSpec(
            (config.vocab_size, config.hidden_size), "BF16", "embedding", "embedding"
        ),
        TEXT + "norm.weight": TensorSpec((config.hidden_size,), "BF16", "norm", "norms"),
    }
    for layer in range(config.num_hidden_layers):
        tensors.update(_layer(config, layer, "main"))
    if mtp:
        for layer in config.mtp_layers:
            tensors.update(_layer(config, layer, "mtp"))
    if vision and config.vision is not None:
        for name, shape in _vision_rows(config.vision):
            tensors[VISION + name] = TensorSpec(shape, "BF16", "vision", "vision", "vision")
    return tensors


def _layer(config: Glm5NextConfig, layer: int, part: Part) -> Iterator[tuple[str, TensorSpec]]:
    prefix = f"{TEXT}layers.{layer}."
    sections: list[tuple[str, str, tuple[_Row, ...]]] = [("", "norms", _layer_norms(config))]
    sections.append(("", "MTP joint", _mtp_rows(config)) if part == "mtp" else ("", "mHC", _hc_rows(config)))
    if config.attention_kind(layer) == "kda":
        sections.append(("self_attn.", "KDA", _kda_rows(config)))
    else:
        sections.append(("self_attn.", "MLA", _mla_rows(config)))
        sections.append(("self_attn.indexer.", "indexer", _indexer_rows(config)))
    if config.mlp_kind(layer) == "dense":
        sections.append(("mlp.", "dense MLP", _mlp_rows(config, config.intermediate_size)))
    else:
        sections.append(("mlp.gate.", "router", _router_rows(config)))
        sections.append(("mlp.shared_experts.", "shared experts", _mlp_rows(config, config.shared_width)))
    for infix, module, rows in sections:
        for suffix, shape, role, dtype in rows:
            yield prefix + infix + suffix, TensorSpec(shape, dtype, role, module, part, layer)
    if config.mlp_kind(layer) == "sparse":
        yield from _expert_tensors(config, prefix, layer, part)


def _expert_tensors(
    config: Glm5NextConfig, prefix: str, layer: int, part: Part
) -> Iterator[tuple[str, TensorSpec]]:
    # One TensorSpec a matrix kind: a real layer has 864 of these tensors.
    specs = [
        (suffix, TensorSpec(shape, dtype, "expert", "routed experts", part, layer))
        for suffix, shape, _, dtype in _mlp_rows(config, config.moe_intermediate_size)
    ]
    for expert in range(config.n_routed_experts):
        for suffix, spec in specs:
            yield f"{prefix}mlp.experts.{expert}.{suffix}", spec


def _layer_norms(config: Glm5NextConfig) -> tuple[_Row, ...]:
    width = (config.hidden_size,)
    return (
        ("input_layernorm.weight", width, "norm", "BF16"),
        ("post_attention_layernorm.weight", width, "norm", "BF16"),
    )


def _hc_rows(config: Glm5NextConfig) -> tuple[_Row, ...]:
    streams = config.hc_mult
    mixes = streams * (2 + streams)
    rows: list[_Row] = []
    for site in ("attn", "ffn"):
        rows.append((f"hc_{site}_fn", (mixes, streams * config.hidden_size), "mix", "BF16"))
        rows.append((f"hc_{site}_base", (mixes,), "mix", "F32"))
        rows.append((f"hc_{site}_scale", (3,), "mix", "F32"))
    return tuple(rows)


def _kda_rows(config: Glm5NextConfig) -> tuple[_Row, ...]:
    hidden, width, dim = config.hidden_size, config.linear_width, config.linear_head_dim
    rows: list[_Row] = []
    for matrix in "qkv":
        rows.append((f"{matrix}_proj.weight", (width, hidden), "linear", "BF16"))
    for matrix in "qkv":
        rows.append((f"{matrix}_conv1d.weight", (width, 1, config.linear_conv_kernel_dim), "conv", "BF16"))
    rows.append(("b_proj.weight", (config.linear_num_heads, hidden), "linear", "BF16"))
    for gate in "fg":
        rows.append((f"{gate}_a_proj.weight", (dim, hidden), "linear", "BF16"))
        rows.append((f"{gate}_b_proj.weight", (width, dim), "linear", "BF16"))
    rows.append(("A_log", (config.linear_num_heads,), "vector", "F32"))
    rows.append(("dt_bias", (width,), "vector", "F32"))
    rows.append(("o_norm.weight", (dim,), "norm", "BF16"))
    rows.append(("o_proj.weight", (hidden, width), "linear", "BF16"))
    return tuple(rows)


def _mla_rows(config: Glm5NextConfig) -> tuple[_Row, ...]:
    hidden, heads, rank = config.hidden_size, config.num_attention_heads, config.kv_lora_rank
    return (
        ("q_a_proj.weight", (config.q_lora_rank, hidden), "linear", "BF16"),
        ("q_a_layernorm.weight", (config.q_lora_rank,), "norm", "BF16"),
        ("q_b_proj.weight", (heads * config.qk_nope_head_dim, config.q_lora_rank), "linear", "BF16"),
        ("kv_a_proj_with_mqa.weight", (rank, hidden), "linear", "BF16"),
        ("kv_a_layernorm.weight", (rank,), "norm", "BF16"),
        ("kv_b_proj.weight", (heads * (config.qk_nope_head_dim + config.v_head_dim), rank), "linear", "BF16"),
        ("o_proj.weight", (hidden, heads * config.v_head_dim), "linear", "BF16"),
    )


def _indexer_rows(config: Glm5NextConfig) -> tuple[_Row, ...]:
    hidden, dim = config.hidden_size, config.index_head_dim
    return (
        ("wq_b.weight", (config.index_n_heads * dim, config.q_lora_rank), "linear", "BF16"),
        ("wk.weight", (dim, hidden), "linear", "BF16"),
        ("k_norm.weight", (dim,), "norm", "BF16"),
        ("k_norm.bias", (dim,), "norm", "BF16"),
        ("weights_proj.weight", (config.index_n_heads, hidden), "linear", "BF16"),
        ("index_kpool_compress_ape", (config.index_kpool, dim), "vector", "BF16"),
        # A matrix, but a bare parameter rather than a linear layer, so never quantized.
        ("index_kpool_compress_gate", (dim, hidden), "vector", "BF16"),
    )


def _mlp_rows(config: Glm5NextConfig, width: int) -> tuple[_Row, ...]:
    hidden = config.hidden_size
    return (
        ("gate_proj.weight", (width, hidden), "linear", "BF16"),
        ("up_proj.weight", (width, hidden), "linear", "BF16"),
        ("down_proj.weight", (hidden, width), "linear", "BF16"),
    )


def _router_rows(config: Glm5NextConfig) -> tuple[_Row, ...]:
    return (
        ("weight", (config.n_routed_experts, config.hidden_size), "router", "BF16"),
        ("e_score_correction_bias", (config.n_routed_experts,), "router", "F32"),
    )


def _mtp_rows(config: Glm5NextConfig) -> tuple[_Row, ...]:
    hidden = config.hidden_size
    return (
        ("eh_proj.weight", (hidden, 2 * hidden), "linear", "BF16"),
        ("enorm.weight", (hidden,), "norm", "BF16"),
        ("hnorm.weight", (hidden,), "norm", "BF16"),
        ("shared_head.norm.weight", (hidden,), "norm", "BF16"),
    )


def _vision_rows(vision: VisionConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    width, inner, out = vision.hidden_size, vision.intermediate_size, vision.out_hidden_size
    patch, merge = vision.patch_size, vision.spatial_merge_size
    yield "patch_embed.proj.weight", (width, vision.in_channels, vision.temporal_patch_size, patch, patch)
    yield "patch_embed.proj.bias", (width,)
    for block in range(vision.depth):
        shapes: dict[str, tuple[int, ...]] = {
            "norm1.weight": (width,),
            "norm2.weight": (width,),
            "attn.qkv.weight": (3 * width, width),
            "attn.qkv.bias": (3 * width,),
            "attn.proj.weight": (width, width),
            "attn.proj.bias": (width,),
            "attn.q_norm.weight": (width // vision.num_heads,),
            "attn.k_norm.weight": (width // vision.num_heads,),
            "mlp.gate_proj.weight": (inner, width),
            "mlp.gate_proj.bias": (inner,),
            "mlp.up_proj.weight": (inner, width),
            "mlp.up_proj.bias": (inner,),
            "mlp.down_proj.weight": (width, inner),
            "mlp.down_proj.bias": (width,),
        }
        for name, shape in shapes.items():
            yield f"blocks.{block}.{name}", shape
    yield "post_layernorm.weight", (width,)
    yield "downsample.weight", (out, width, merge, merge)
    yield "downsample.bias", (out,)
    projection = vision.projection_intermediate_size
    yield "merger.proj.weight", (out, out)
    yield "merger.post_projection_norm.weight", (out,)
    yield "merger.post_projection_norm.bias", (out,)
    yield "merger.gate_proj.weight", (projection, out)
    yield "merger.up_proj.weight", (projection, out)
    yield "merger.down_proj.weight", (out, projection)
