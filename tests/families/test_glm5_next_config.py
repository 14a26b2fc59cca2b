"""A configuration is read whole, or refused with every reason."""

import contextlib
import copy

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from intarsia.families.errors import ConfigError
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.families.registry import family_of
from tests.data import load_json

TINY = load_json("tiny_glm5_next_config.json")


def changed(**values):
    config = copy.deepcopy(TINY)
    for key, value in values.items():
        if value is ...:
            del config["text_config"][key]
        else:
            config["text_config"][key] = value
    return config


def test_published_configuration():
    config = Glm5NextConfig.from_checkpoint_config(load_json("nvidia_GLM-5.3-Flash-NVFP4.config.json"))
    assert config.mla_layers == tuple(range(3, 45, 4))
    assert len(config.kda_layers) == 34
    assert config.mlp_kinds.count("dense") == 3
    assert config.mtp_layers == (45,)
    assert config.attention_kind(45) == "mla"
    assert config.mlp_kind(45) == "sparse"
    assert config.eos_token_ids == (154820, 154827, 154829)
    assert (config.linear_width, config.shared_width) == (8192, 2048)
    assert (config.index_kpool, config.linear_lower_bound, config.swiglu_limit) == (4, -5.0, 10.0)
    assert config.vision is not None
    assert config.vision.depth == 24


def test_flat_text_configuration_equals_the_nested_one_without_vision():
    nested = copy.deepcopy(TINY)
    del nested["vision_config"]
    assert Glm5NextConfig.from_checkpoint_config(
        TINY["text_config"]
    ) == Glm5NextConfig.from_checkpoint_config(nested)


def test_other_spellings_and_sources_of_the_layer_pattern():
    expected = Glm5NextConfig.from_checkpoint_config(TINY)
    kinds = ["linear_attention"] * 3 + ["indexed_attention"] + ["linear_attention"] * 3 + ["full_attention"]
    for config in (changed(layer_types=kinds), changed(layer_types=...), changed(mlp_layer_types=...)):
        assert Glm5NextConfig.from_checkpoint_config(config) == expected
    linear = dict(TINY["text_config"]["linear_attn_config"])
    flat = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim", "linear_lower_bound")
    assert Glm5NextConfig.from_checkpoint_config(changed(**dict.fromkeys(flat, ...))) == expected
    assert Glm5NextConfig.from_checkpoint_config(changed(linear_attn_config=...)) == expected
    linear["head_dim"] = 32
    with pytest.raises(ConfigError, match="config-contradiction"):
        Glm5NextConfig.from_checkpoint_config(changed(linear_attn_config=linear))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("scoring_func", "softmax"),
        ("topk_method", "greedy"),
        ("n_group", 2),
        ("topk_group", 2),
        ("norm_topk_prob", False),
        ("moe_router_dtype", "bfloat16"),
        ("qk_rope_head_dim", 64),
        ("mla_use_nope", False),
        ("mhc", False),
        ("hidden_act", "gelu"),
        ("attention_bias", True),
        ("tie_word_embeddings", True),
        ("index_kpool", ...),
        ("index_topk", 18),
        ("index_kpool_compress", False),
        ("index_kpool_always_select_tail", False),
        ("index_topk_freq", 4),
        ("index_topk_pattern", "FS"),
        ("index_topk_pattern", 7),
        ("indexer_types", ["full"] * 7 + ["shared"]),
        ("linear_lower_bound", None),
        ("linear_lower_bound", 5.0),
        ("num_key_value_heads", 2),
        ("qk_head_dim", 32),
        ("num_experts_per_tok", 9),
        ("num_nextn_predict_layers", 2),
        ("index_share_for_mtp_iteration", ...),
        ("swiglu_limit", None),
        ("rms_norm_eps", float("nan")),
        ("rms_norm_eps", 10**400),
        ("hidden_size", True),
        ("hidden_size", 64.0),
        ("hidden_size", ...),
        ("vocab_size", 0),
        ("layer_types", ["linear_attention"] * 8),
        ("layer_types", ["linear_attention"] * 7),
        ("layer_types", "linear_attention"),
        ("layer_types", ["sliding_attention"] * 8),
        ("linear_attn_config", {"kda_layers": [0, 1], "full_attn_layers": [3]}),
        ("linear_attn_config", 3),
        ("mlp_layer_types", ["sparse"] * 8),
        ("eos_token_id", [128]),
        ("eos_token_id", "</s>"),
        ("n_routed_experts", 2_000_000),
    ],
)
def test_one_wrong_key_is_refused_by_name(key, value):
    with pytest.raises(ConfigError) as refusal:
        Glm5NextConfig.from_checkpoint_config(changed(**{key: value}))
    assert any(f".{key}" in violation.where for violation in refusal.value.violations), str(refusal.value)
    if value is not ...:
        assert all(violation.expected for violation in refusal.value.violations)


def test_all_violations_are_reported_together():
    config = changed(scoring_func="softmax", intermediate_size=-1, index_kpool=...)
    with pytest.raises(ConfigError) as refusal:
        Glm5NextConfig.from_checkpoint_config(config)
    assert [violation.where.rpartition(".")[2] for violation in refusal.value.violations] == [
        "scoring_func",
        "index_kpool",
        "intermediate_size",
    ]


def test_keys_without_effect_on_the_arithmetic_are_tolerated():
    extra = changed(
        initializer_range=7, attention_dropout=0.5, base_model_ep_plan={"a": "b"}, use_cache=False
    )
    assert Glm5NextConfig.from_checkpoint_config(extra) == Glm5NextConfig.from_checkpoint_config(TINY)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(TINY["text_config"])), values, min_size=1, max_size=4))
def test_arbitrary_values_give_a_refusal_or_a_configuration(replacements):
    config = copy.deepcopy(TINY)
    config["text_config"].update(replacements)
    with contextlib.suppress(ConfigError):
        Glm5NextConfig.from_checkpoint_config(config)


def test_an_architecture_without_data_is_a_family_of_its_own():
    assert family_of({"model_type": "something_new"}).groupings == {"default": ()}
    rules = family_of({"model_type": "llama"}).groupings["default"]
    assert [rule.fused for rule in rules] == ["qkv_proj", "gate_up_proj"]


def test_spellings_of_one_module_share_a_key():
    family = family_of(TINY)
    spellings = ["model.language_model.", "language_model.model.", "model.", "language_model.", ""]
    assert {family.key(prefix + "layers.8.eh_proj") for prefix in spellings} == {"layers.8.eh_proj"}
    assert family.key("mtp.eh_proj") == "layers.8.eh_proj"
    assert family.is_draft("model.language_model.layers.8.eh_proj")
    assert not family.is_draft("model.language_model.layers.80.eh_proj")
