"""Turning a parsed `config.json` into a Glm5NextConfig, collecting every problem on the way."""

from typing import cast

from intarsia.families.fields import Fields
from intarsia.families.glm5_next.config import AttentionKind, Glm5NextConfig, MlpKind, VisionConfig

# Three spellings of the sparse-attention layer are in circulation.
_ATTENTION = {
    "linear_attention": "kda",
    "deepseek_sparse_attention": "mla",
    "indexed_attention": "mla",
    "full_attention": "mla",
}
_MLP = {"dense": "dense", "sparse": "sparse"}
# An inventory larger than this is not a model; it is a config made to exhaust memory.
_MAX_EXPERT_MATRICES = 2_000_000

# Absent is fine for these: the value below is what every known reader assumes then.
_FIXED: dict[str, object] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "qk_rope_head_dim": 0,
    "mla_use_nope": True,
    "mhc": True,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "moe_router_dtype": "float32",
    "index_kpool_compress": True,
    "index_kpool_always_select_tail": True,
    "index_topk_freq": 1,
}


def read_config(top: Fields) -> Glm5NextConfig:
    nested = top.section("text_config")
    top.fixed("model_type", "glm5_next" if nested else "glm5_next_text", required=True)
    top.fixed("tie_word_embeddings", False)
    text = nested or top
    text.fixed("model_type", "glm5_next_text")
    for key, value in _FIXED.items():
        text.fixed(key, value)
    layers = text.integer("num_hidden_layers", maximum=4096)
    vocab_size = text.integer("vocab_size")
    linear = _linear(text)
    pads = text.token_ids("pad_token_id", vocab_size)
    config = Glm5NextConfig(
        hidden_size=text.integer("hidden_size"),
        num_hidden_layers=layers,
        vocab_size=vocab_size,
        max_position_embeddings=text.integer("max_position_embeddings"),
        rms_norm_eps=text.number("rms_norm_eps"),
        attention_kinds=_attention_kinds(text, layers),
        mlp_kinds=_mlp_kinds(text, layers),
        num_attention_heads=text.integer("num_attention_heads"),
        q_lora_rank=text.integer("q_lora_rank"),
        kv_lora_rank=text.integer("kv_lora_rank"),
        qk_nope_head_dim=text.integer("qk_nope_head_dim"),
        v_head_dim=text.integer("v_head_dim"),
        index_n_heads=text.integer("index_n_heads"),
        index_head_dim=text.integer("index_head_dim"),
        index_topk=text.integer("index_topk"),
        # transformers' default, 16, is wrong for every known checkpoint, so the key must be there.
        index_kpool=text.integer("index_kpool"),
        linear_num_heads=linear.integer("linear_num_heads"),
        linear_head_dim=linear.integer("linear_head_dim"),
        linear_conv_kernel_dim=linear.integer("linear_conv_kernel_dim", minimum=2, maximum=64),
        linear_lower_bound=linear.number("linear_lower_bound", positive=False),
        hc_mult=text.integer("hc_mult", maximum=64),
        hc_eps=text.number("hc_eps"),
        hc_sinkhorn_iters=text.integer("hc_sinkhorn_iters", maximum=10_000),
        intermediate_size=text.integer("intermediate_size"),
        moe_intermediate_size=text.integer("moe_intermediate_size"),
        n_routed_experts=text.integer("n_routed_experts"),
        num_experts_per_tok=text.integer("num_experts_per_tok"),
        n_shared_experts=text.integer("n_shared_experts"),
        routed_scaling_factor=text.number("routed_scaling_factor"),
        swiglu_limit=text.number("swiglu_limit"),
        num_nextn_predict_layers=text.integer("num_nextn_predict_layers", minimum=0, maximum=1, default=0),
        index_share_for_mtp_iteration=_index_share(text),
        eos_token_ids=text.token_ids("eos_token_id", vocab_size),
        pad_token_id=pads[0] if pads else None,
        vision=_vision(top.section("vision_config"), text) if nested else None,
    )
    _check_relations(text, config)
    return config


def _check_relations(text: Fields, config: Glm5NextConfig) -> None:
    text.fixed("num_key_value_heads", config.num_attention_heads)
    text.fixed("qk_head_dim", config.qk_nope_head_dim)
    text.strings("indexer_types", {"full": "full"}, config.num_hidden_layers)
    pattern = text.values.get("index_topk_pattern")
    if pattern is not None and not (
        isinstance(pattern, (str, list)) and set(map(str, pattern)) <= {"F", "full"}
    ):
        text.refuse("index_topk_pattern", pattern, "an own (full) indexer in every layer")
    if config.index_topk % config.index_kpool:
        text.refuse("index_topk", config.index_topk, f"a multiple of index_kpool {config.index_kpool}")
    if config.num_experts_per_tok > config.n_routed_experts:
        text.refuse("num_experts_per_tok", config.num_experts_per_tok, f"at most {config.n_routed_experts}")
    matrices = 3 * config.n_routed_experts * config.num_hidden_layers
    if matrices > _MAX_EXPERT_MATRICES:
        text.refuse("n_routed_experts", f"{matrices} expert matrices", f"at most {_MAX_EXPERT_MATRICES}")


def _linear(text: Fields) -> Fields:
    """KDA's sizes from the flat keys, from `linear_attn_config`, or from both when they agree."""
    keys = {
        "linear_num_heads": "num_heads",
        "linear_head_dim": "head_dim",
        "linear_conv_kernel_dim": "short_conv_kernel_size",
        "linear_lower_bound": "gate_lower_bound",
    }
    values = {key: text.values[key] for key in keys if key in text}
    nested = text.section("linear_attn_config")
    if nested is not None:
        for flat, inner in keys.items():
            if inner not in nested:
                continue
            if flat in values and values[flat] != nested.values[inner]:
                nested.refuse(
                    inner, nested.values[inner], f"{flat} {values[flat]!r}", rule="config-contradiction"
                )
            values.setdefault(flat, nested.values[inner])
    return Fields(values, text.where, text.violations)


def _attention_kinds(text: Fields, layers: int) -> tuple[AttentionKind, ...]:
    listed = text.strings("layer_types", _ATTENTION, layers)
    nested = text.section("linear_attn_config")
    kda = nested.values.get("kda_layers") if nested else None
    mla = nested.values.get("full_attn_layers") if nested else None
    derived = None
    if isinstance(kda, list) and isinstance(mla, list):
        indices = [*kda, *mla]
        if all(type(i) is int for i in indices) and sorted(indices) == list(range(layers)):
            linear = set(kda)
            derived = tuple("kda" if i in linear else "mla" for i in range(layers))
        else:
            text.refuse(
                "linear_attn_config", "kda_layers and full_attn_layers", f"each of {layers} layers once"
            )
    if listed and derived and listed != derived:
        text.refuse(
            "layer_types", "another split than linear_attn_config", "the same", rule="config-contradiction"
        )
    kinds = listed or derived
    if kinds is None:
        if "layer_types" not in text:
            text.refuse("layer_types", "nothing", f"a list of {layers} layer types")
        kinds = ("kda",) * layers
    return cast(tuple[AttentionKind, ...], kinds)


def _mlp_kinds(text: Fields, layers: int) -> tuple[MlpKind, ...]:
    listed = text.strings("mlp_layer_types", _MLP, layers)
    if "first_k_dense_replace" in text or listed is None:
        dense = text.integer("first_k_dense_replace", minimum=0)
        derived = ("dense",) * min(dense, layers) + ("sparse",) * (layers - min(dense, layers))
        if listed and listed != derived:
            text.refuse(
                "mlp_layer_types", "other dense layers", f"the first {dense}", rule="config-contradiction"
            )
        listed = listed or derived
    return cast(tuple[MlpKind, ...], listed)


def _index_share(text: Fields) -> bool:
    if not text.values.get("num_nextn_predict_layers"):
        return False
    value = text.values.get("index_share_for_mtp_iteration")
    if not isinstance(value, bool):
        text.refuse("index_share_for_mtp_iteration", value, "true or false, since there is an MTP layer")
        return False
    return value


def _vision(vision: Fields | None, text: Fields) -> VisionConfig | None:
    if vision is None:
        return None
    vision.fixed("attention_bias", True)
    vision.fixed("out_hidden_size", text.values.get("hidden_size"), required=True)
    return VisionConfig(
        depth=vision.integer("depth", maximum=4096),
        hidden_size=vision.integer("hidden_size"),
        num_heads=vision.integer("num_heads"),
        intermediate_size=vision.integer("intermediate_size"),
        out_hidden_size=vision.integer("out_hidden_size"),
        projection_intermediate_size=vision.integer("projection_intermediate_size"),
        in_channels=vision.integer("in_channels"),
        patch_size=vision.integer("patch_size"),
        temporal_patch_size=vision.integer("temporal_patch_size"),
        spatial_merge_size=vision.integer("spatial_merge_size"),
    )
