"""Every way in which a manifest cannot be carried out exactly, and all of them at once."""

import pytest

from intarsia.families.registry import family_of
from intarsia.selection.errors import SelectionError
from intarsia.selection.manifest import Manifest, ScalePolicy, Section, SourceIdentity
from intarsia.selection.recipes import apply_recipe
from intarsia.selection.resolve import resolve
from intarsia.selection.source import describe_source
from tests.selection.conftest import headers_of, tiny

L = "model.language_model.layers."
KDA = [f"{L}0.self_attn.{name}_proj" for name in ("q", "k", "v", "b", "f_a")]
EXPERTS = f"{L}3.mlp.experts"


def manifest(targets, draft=None, **section):
    if not isinstance(targets, dict):
        targets = dict.fromkeys(targets, "MXFP8")
    return Manifest(
        schema="intarsia.manifest/1",
        main=Section(targets=targets, **section),
        draft=Section(targets=draft) if draft else None,
    )


def refused(given, source):
    with pytest.raises(SelectionError) as refusal:
        resolve(given, source)
    return {violation.rule: violation for violation in refusal.value.violations}


def test_a_whole_group_is_one_fused_module(tiny_source):
    selection = resolve(manifest(KDA), tiny_source)
    assert set(selection.targets) == set(KDA)
    assert selection.fused_modules("main") == (f"{L}0.self_attn.fused_qkvbf_a_proj",)
    assert selection.targets[KDA[0]].group == f"{L}0.self_attn.fused_qkvbf_a_proj"
    assert selection.format_of(f"{L}0.self_attn.o_proj") == "BF16"


@pytest.mark.parametrize(
    "name",
    [
        f"{L}0.self_attn.fused_qkvbf_a_proj",
        "language_model.model.layers.0.self_attn.fused_qkvbf_a_proj",
        "model.layers.0.self_attn.fused_qkvbf_a_proj",
    ],
)
def test_runtime_names_stand_for_their_sources(tiny_source, name):
    assert set(resolve(manifest([name]), tiny_source).targets) == set(KDA)


def test_the_draft_has_names_of_its_own(tiny_source):
    for name in (f"{L}8.mlp.experts", "model.layers.8.mlp.experts", "mtp.mlp.experts"):
        given = manifest(KDA, {name: "W4A16_NVFP4"})
        assert len(resolve(given, tiny_source).targets) == len(KDA) + 24
    stack = manifest(KDA, {"mtp.mlp.shared_experts.gate_up": "MXFP8"})
    assert [t.module.rpartition(".")[2] for t in resolve(stack, tiny_source).targets.values()][-2:] == [
        "gate_proj",
        "up_proj",
    ]


def test_patterns_and_ignore_without_strict(tiny_source):
    given = manifest(["*.self_attn.o_proj"], strict=False, ignore=[])
    assert len(resolve(given, tiny_source).targets) == 8
    given = manifest([r"re:.*layers\.[01]\.self_attn\.o_proj"], strict=False)
    assert len(resolve(given, tiny_source).targets) == 2
    given = manifest({"*.mlp.experts": "W4A16_NVFP4"}, strict=False)
    assert len(resolve(given, tiny_source).targets) == 5 * 24


@pytest.mark.parametrize("pattern", ["re:.*attn.*", "model.*.q_proj", "model.layers.[01].q_proj", "a?b"])
def test_strict_refuses_patterns(tiny_source, pattern):
    assert "exact names" in refused(manifest([pattern]), tiny_source)["strict-pattern"].expected


def test_strict_needs_targets(tiny_source):
    assert "strict-empty" in refused(manifest({}), tiny_source)
    assert resolve(manifest({}, strict=False), tiny_source).targets == {}


def test_an_incomplete_group_names_what_is_missing(tiny_source):
    for missing in KDA:
        violation = refused(manifest([name for name in KDA if name != missing]), tiny_source)[
            "incomplete-group"
        ]
        assert missing.rpartition(".")[2] in violation.found
        assert violation.where.endswith("fused_qkvbf_a_proj")
    pair = refused(manifest([f"{L}3.mlp.shared_experts.up_proj"]), tiny_source)["incomplete-group"]
    assert "gate_proj" in pair.found
    some = [f"{EXPERTS}.0.{name}_proj" for name in ("gate", "up", "down")]
    assert "21 of 24" in refused(manifest(some), tiny_source)["incomplete-group"].found


def test_the_grouping_decides_what_belongs_together(tiny_source):
    assert len(resolve(manifest(KDA[:3], grouping="qkv"), tiny_source).fused_modules("main")) == 1
    assert "unknown-grouping" in refused(manifest(KDA, grouping="wide"), tiny_source)


def test_two_formats_in_a_group(tiny_source):
    given = dict.fromkeys(KDA, "MXFP8") | {KDA[1]: "FP8"}
    assert refused(manifest(given), tiny_source)["mixed-group"].found == "FP8, MXFP8"


def test_one_module_named_twice(tiny_source):
    twice = [*KDA, "model.layers.0.self_attn.q_proj"]
    assert KDA[0] in refused(manifest(twice), tiny_source)["named-twice"].found
    both = [*KDA, "model.layers.0.self_attn.fused_qkvbf_a_proj"]
    assert "fused_qkvbf_a_proj" in refused(manifest(both), tiny_source)["named-with-its-group"].found


def test_a_name_that_resolves_to_nothing_gets_the_nearest(tiny_source):
    violation = refused(manifest([f"{L}3.self_attn.q_a_prj"]), tiny_source)["unresolved"]
    assert f"{L}3.self_attn.q_a_proj" in violation.action


def test_modules_that_cannot_be_targets(tiny_source):
    for name in (
        "model.language_model.embed_tokens",
        f"{L}0.input_layernorm",
        f"{L}3.mlp.gate",
    ):
        assert refused(manifest([name]), tiny_source)["not-linear"].where == name
    assert refused(manifest(["model.visual.merger.proj"]), tiny_source)["outside-network"]
    draft = [f"{L}8.eh_proj"]
    assert refused(manifest(draft), tiny_source)["wrong-section"].expected == "it in draft"
    assert "unknown-format" in refused(manifest({f"{L}0.self_attn.o_proj": "MXFP9"}), tiny_source)
    assert "plain-target" in refused(manifest({f"{L}0.self_attn.o_proj": "bf16"}), tiny_source)


def test_an_explicit_nvfp4_needs_activation_scales(tiny_source):
    violation = refused(manifest({EXPERTS: "NVFP4"}), tiny_source)["activation-scale"]
    assert "W4A16_NVFP4" in violation.action
    assert "23 more" in violation.found


def test_a_shape_the_format_does_not_divide():
    source = describe_source(tiny(q_lora_rank=48), headers_of(tiny(q_lora_rank=48)), {})
    violation = refused(manifest([f"{L}3.self_attn.q_b_proj"]), source)["shape"]
    assert "48" in violation.found
    assert "MXFP8" in violation.expected


def test_an_already_quantized_module_is_refused_unless_it_may_be_encoded_again(nvfp4_source):
    given = manifest({EXPERTS: "MXFP8"})
    violations = refused(given, nvfp4_source)
    assert "NVFP4" in violations["already-quantized"].found
    again = manifest({EXPERTS: "MXFP8"}, requantize=[EXPERTS])
    assert len(resolve(again, nvfp4_source).targets) == 864
    assert "unused-requantize" in refused(
        manifest([f"{L}0.self_attn.o_proj"], requantize=[EXPERTS]), nvfp4_source
    )


def test_a_source_that_is_not_bf16():
    headers = headers_of(tiny())
    headers[f"{L}0.self_attn.o_proj.weight"] = ("F32", headers[f"{L}0.self_attn.o_proj.weight"][1])
    source = describe_source(tiny(), headers, {})
    assert refused(manifest([f"{L}0.self_attn.o_proj"]), source)["source-dtype"].found == "F32"


def test_ignore_must_not_meet_targets_and_must_match_something(tiny_source):
    violations = refused(manifest(KDA, ignore=[KDA[0], "model.nothing"]), tiny_source)
    assert violations["ignored-target"].where == KDA[0]
    assert violations["unused-ignore"].where == "model.nothing"


def test_two_stored_modules_with_one_runtime_name():
    headers = headers_of(tiny())
    headers["language_model.model.layers.0.self_attn.o_proj.weight"] = ("BF16", (64, 128))
    source = describe_source(tiny(), headers, {})
    assert "same-name" in refused(manifest([f"{L}0.self_attn.o_proj"]), source)


def test_a_right_name_with_a_wrong_value():
    headers = headers_of(tiny())
    headers[f"{L}0.self_attn.o_proj.weight"] = ("BF16", (64, 32))
    source = describe_source(tiny(), headers, {})
    assert "by config.json" in refused(manifest([f"{L}0.self_attn.o_proj"]), source)["source-shape"].expected


def test_a_manifest_written_for_another_source(tiny_source):
    other = SourceIdentity("glm5_next", 7, "0" * 64)
    given = Manifest(
        schema="intarsia.manifest/1", main=Section(targets=dict.fromkeys(KDA, "MXFP8")), source=other
    )
    assert "7 tensors" in refused(given, tiny_source)["source-identity"].expected


def test_everything_wrong_is_reported_together(tiny_source):
    given = manifest(
        {KDA[0]: "MXFP8", "model.nothing": "MXFP8", EXPERTS: "NVFP4", f"{L}0.input_layernorm": "MXFP8"},
        {f"{L}8.mlp.shared_experts.up_proj": "MXFP8"},
    )
    with pytest.raises(SelectionError) as refusal:
        resolve(given, tiny_source)
    rules = [violation.rule for violation in refusal.value.violations]
    assert sorted(rules) == [
        "activation-scale",
        "incomplete-group",
        "incomplete-group",
        "not-linear",
        "unresolved",
    ]


def test_scale_policy_per_section_and_layer(tiny_source):
    def codecs(main, draft):
        given = Manifest(
            schema="intarsia.manifest/1",
            main=Section(targets={EXPERTS: "W4A16_NVFP4", f"{L}4.mlp.experts": "W4A16_NVFP4"}, scales=main),
            draft=Section(targets={f"{L}8.mlp.experts": "W4A16_NVFP4"}, scales=draft),
        )
        targets = resolve(given, tiny_source).targets
        return [targets[f"{L}{layer}.mlp.experts.0.up_proj"].codec for layer in (3, 4, 8)]

    csf, slab, inherit = ScalePolicy("csf"), ScalePolicy("csf", "nvfp4_slab"), ScalePolicy("inherit")
    assert codecs(csf, inherit) == ["csf_32x2_v1"] * 3
    assert codecs(csf, ScalePolicy()) == ["csf_32x2_v1"] * 2 + [None]
    assert codecs(ScalePolicy(), csf) == [None, None, "csf_32x2_v1"]
    assert codecs(inherit, inherit) == [None] * 3
    override = ScalePolicy("csf", "nvfp4_slab", {EXPERTS: "native"})
    assert codecs(override, slab) == [None, "nvfp4_slab", "nvfp4_slab"]


def test_a_layer_policy_must_name_an_experts_container(tiny_source):
    policy = ScalePolicy("csf", layers={"layers.3.mlp": "native"})
    assert "unresolved-layer" in refused(manifest(KDA, scales=policy), tiny_source)


def test_a_codec_that_cannot_hold_the_scales():
    config = tiny(moe_intermediate_size=48)
    source = describe_source(config, headers_of(config), {})
    policy = ScalePolicy("csf")
    violation = refused(manifest({EXPERTS: "W4A16_NVFP4"}, scales=policy), source)["csf-shape"]
    assert violation.where.endswith("down_proj")
    assert "3 columns, and 7 more" in violation.found


def test_an_architecture_without_data_is_selected_by_exact_names():
    headers = {"net.a.weight": ("BF16", (64, 64)), "net.b.weight": ("BF16", (64,))}
    source = describe_source({"model_type": "something_new"}, headers, {})
    assert list(resolve(manifest(["net.a"]), source).targets) == ["net.a"]
    assert "not-linear" in refused(manifest(["net.b"]), source)
    assert family_of({"model_type": "something_new"}).key("net.a") == "net.a"


def test_a_recipes_manifest_resolves_on_its_source_only(tiny_source, real_source):
    given = apply_recipe("spark", tiny_source)
    assert resolve(given, tiny_source).targets
    assert "source-identity" in refused(given, real_source)
