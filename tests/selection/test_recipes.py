"""Built-in recipes give the published selections."""

from collections import Counter

import pytest

from intarsia.selection.errors import RecipeNameError, SelectionError
from intarsia.selection.recipes import RECIPES, apply_recipe
from intarsia.selection.resolve import resolve
from intarsia.selection.source import describe_source
from tests.data import load_json
from tests.selection.conftest import headers_of, tiny

LAYERS = "model.language_model.layers."


def test_spark_is_the_published_selection(real_source):
    manifest = apply_recipe("spark", real_source)
    published = load_json("glm53_spark_targets.json")
    mxfp8 = [
        name
        for section in manifest.sections().values()
        for name, wanted in section.targets.items()
        if wanted == "MXFP8"
    ]
    assert set(mxfp8) == set(published["targets"])
    assert len(manifest.main.targets) == 520
    assert len(manifest.draft.targets) == 11 + 1
    (experts,) = published["nvfp4_mtp_targets"]
    assert manifest.draft.targets[experts] == "W4A16_NVFP4"


def test_spark_on_the_quantized_source_leaves_its_experts_alone(nvfp4_source, real_source):
    manifest = apply_recipe("spark", nvfp4_source)
    assert manifest.main.targets == apply_recipe("spark", real_source).main.targets
    selection = resolve(manifest, nvfp4_source)
    assert selection.format_of(LAYERS + "3.mlp.experts.0.up_proj") == "NVFP4"


def test_spark_counts_331_and_9_and_1_modules(real_source):
    selection = resolve(apply_recipe("spark", real_source), real_source)
    assert len(selection.fused_modules("main")) == 331
    assert selection.fused_modules("main", experts=True) == ()
    assert len(selection.fused_modules("draft")) == 9
    assert selection.fused_modules("draft", experts=True) == (LAYERS + "45.mlp.experts",)
    assert len(selection.targets) == 531 + 864


def test_fp4_local_has_the_published_counts(real_source):
    selection = resolve(apply_recipe("fp4-local", real_source), real_source)
    counts = Counter((target.section, target.format) for target in selection.targets.values())
    assert counts == {
        ("main", "W4A16_NVFP4"): 36_288,
        ("draft", "W4A16_NVFP4"): 864,
        ("main", "MXFP8"): 34 * 4 + 9 + 1,
        ("draft", "MXFP8"): 7,
        ("main", "FP8_PB_WO"): 170,
    }
    assert selection.targets["lm_head"].format == "MXFP8"
    assert selection.format_of(LAYERS + "0.self_attn.o_proj") == "MXFP8"
    assert selection.format_of(LAYERS + "3.self_attn.o_proj") == "FP8_PB_WO"
    assert selection.format_of(LAYERS + "3.self_attn.kv_b_proj") == "BF16"
    assert selection.format_of(LAYERS + "45.eh_proj") == "BF16"
    codecs = Counter((target.section, target.codec) for target in selection.targets.values())
    assert codecs[("main", "csf_32x2_v1")] == 36_288
    assert codecs[("draft", "csf_32x2_v1")] == 0


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_recipe_resolves_on_a_small_model_of_the_same_kind(tiny_source, name):
    selection = resolve(apply_recipe(name, tiny_source), tiny_source)
    assert bool(selection.targets) == (name != "bf16")


def test_nvfp4_is_kept_where_activation_scales_are_stored():
    config = tiny()
    headers = headers_of(config)
    experts = [name for name in headers if ".mlp.experts." in name and "layers.8." not in name]
    for name in experts:
        headers[name.removesuffix("weight") + "input_scale"] = ("F32", ())
    manifest = apply_recipe("nvfp4-experts", describe_source(config, headers, {}))
    assert set(manifest.main.targets.values()) == {"NVFP4"}
    assert manifest.draft.targets == {}


def test_a_llama_like_source_is_covered_by_the_same_patterns():
    headers = {"lm_head.weight": ("BF16", (128, 64)), "model.norm.weight": ("BF16", (64,))}
    for matrix in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"):
        headers[f"model.layers.0.{matrix}.weight"] = ("BF16", (64, 64))
    source = describe_source({"model_type": "llama"}, headers, {})
    selection = resolve(apply_recipe("spark", source), source)
    assert selection.fused_modules("main") == (
        "model.layers.0.self_attn.qkv_proj",
        "model.layers.0.self_attn.o_proj",
    )


def test_an_unknown_recipe_is_refused():
    with pytest.raises(RecipeNameError, match="fp4-local"):
        apply_recipe("fp8", None)


def test_a_recipe_is_refused_on_headers_that_contradict_the_configuration():
    headers = headers_of(tiny())
    headers[LAYERS + "0.self_attn.q_proj.weight"] = ("BF16", (64, 128))
    with pytest.raises(SelectionError, match=r"source-shape.*q_proj"):
        apply_recipe("spark", describe_source(tiny(), headers, {}))
