"""The architecture's tensors against published counts, bytes and names."""

from itertools import pairwise
from math import prod

import pytest

from intarsia.families.errors import UnknownTensorError
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.families.glm5_next.inventory import inventory
from intarsia.families.glm5_next.runtime import runtime_modules, runtime_name
from intarsia.families.glm5_next.split import shares, split_rule
from intarsia.families.groups import LLAMA_LIKE, fused_groups
from intarsia.families.registry import family_of
from tests.data import load_json

LAYERS = "model.language_model.layers."


@pytest.fixture(scope="module")
def config():
    return Glm5NextConfig.from_checkpoint_config(load_json("nvidia_GLM-5.3-Flash-NVFP4.config.json"))


@pytest.fixture(scope="module")
def tensors(config):
    return inventory(config)


def elements(specs):
    return sum(prod(spec.shape) for spec in specs)


def nbytes(specs):
    return sum(prod(spec.shape) * (2 if spec.dtype == "BF16" else 4) for spec in specs)


def test_totals_equal_the_published_bf16_checkpoint(tensors):
    assert len(tensors) == 38_770
    assert elements(tensors.values()) == 321_323_031_390
    routed = [spec for spec in tensors.values() if spec.role == "expert"]
    assert len(routed) == 37_152
    assert nbytes(tensors.values()) - nbytes(routed) == 19_339_524_984


def test_without_mtp_there_are_the_parameters_transformers_counts(config):
    without = inventory(config, mtp=False)
    assert len(without) == 37_881
    assert elements(without.values()) == 313_890_438_974
    assert elements(inventory(config, mtp=False, vision=False).values()) == 313_890_438_974 - 563_627_008


def test_mtp_layer_has_the_published_names_and_bytes(tensors):
    mtp = {name: spec for name, spec in tensors.items() if spec.part == "mtp"}
    assert sorted(mtp) == sorted(load_json("mtp_layer45_keys.json"))
    assert nbytes(mtp.values()) == 14_865_185_408


def test_nvfp4_checkpoint_holds_the_inventory(tensors):
    headers = load_json("derived_headers_nvidia_nvfp4.json.gz")
    assert len(headers) == 147_661
    extra = ("weight_scale", "weight_scale_2", "input_scale")
    base = {name: value for name, value in headers.items() if name.rpartition(".")[2] not in extra}
    assert base.keys() == tensors.keys()
    packed = 0
    for name, (dtype, shape) in base.items():
        spec = tensors[name]
        if dtype == "U8":
            packed += 1
            assert spec.quantizable
            assert (shape[0], 2 * shape[1]) == spec.shape
        else:
            # The one plain tensor kind this checkpoint stores wider than the BF16 one.
            expected = "F32" if spec.role == "conv" else spec.dtype
            assert (dtype, tuple(shape)) == (expected, spec.shape), name
    assert packed == 36_297


def test_every_source_is_used_by_exactly_one_runtime_module(config, tensors):
    modules = runtime_modules(config)
    sources = [
        source + ".weight" if module.matrix else source for module in modules for source in module.sources
    ]
    assert len(set(sources)) == len(sources)
    assert set(sources) == {name for name, spec in tensors.items() if spec.part != "vision"}
    assert len({module.name for module in modules}) == len(modules)
    for module in modules:
        assert prod(module.shape) == elements(
            tensors[source + ".weight" if module.matrix else source] for source in module.sources
        )


def test_experts_are_stacked_gate_first(config):
    modules = {module.name: module for module in runtime_modules(config)}
    gate_up = modules["layers.3.mlp.experts.gate_up"]
    assert gate_up.shape == (288, 4096, 4096)
    assert gate_up.sources[:3] == (
        LAYERS + "3.mlp.experts.0.gate_proj",
        LAYERS + "3.mlp.experts.0.up_proj",
        LAYERS + "3.mlp.experts.1.gate_proj",
    )
    assert modules["mtp.mlp.experts.down"].sources[-1] == LAYERS + "45.mlp.experts.287.down_proj"
    assert modules["layers.0.self_attn.conv1d"].shape == (24_576, 4)
    assert runtime_name(config, LAYERS + "45.shared_head.norm.weight") == "mtp.shared_head.norm"
    assert not any(
        name.startswith("mtp.") for name in (module.name for module in runtime_modules(config, mtp=False))
    )


def test_spark_selection_fuses_to_331_and_9_modules(config, tensors):
    family = family_of(load_json("nvidia_GLM-5.3-Flash-NVFP4.config.json"))
    modules = [name.removesuffix(".weight") for name, spec in tensors.items() if spec.quantizable]
    groups = fused_groups(modules, family.groupings["default"])
    owner = {member: name for name, members in groups.items() for member in members}
    manifest = load_json("glm53_spark_targets.json")
    main = [name for name in manifest["targets"] if not family.is_draft(name)]
    draft = [name for name in manifest["targets"] if family.is_draft(name)]
    assert (len(main), len(draft)) == (520, 11)
    assert len({owner.get(name, name) for name in main}) == 331
    assert len({owner.get(name, name) for name in draft}) == 9
    (experts,) = manifest["nvfp4_mtp_targets"]
    assert len(groups[experts]) == 864


def test_llama_like_groups_need_all_members():
    modules = [f"model.layers.0.self_attn.{matrix}_proj" for matrix in "qkvo"]
    groups = fused_groups([*modules, "model.layers.1.self_attn.q_proj"], LLAMA_LIKE)
    assert groups == {"model.layers.0.self_attn.qkv_proj": tuple(modules[:3])}


@pytest.mark.parametrize(
    ("name", "ranks", "sizes"),
    [
        ("lm_head.weight", 3, [51_648, 51_648, 51_584]),
        (LAYERS + "3.mlp.experts.7.up_proj.weight", 3, [704, 704, 640]),
        (LAYERS + "3.mlp.shared_experts.down_proj.weight", 3, [704, 704, 640]),
        (LAYERS + "0.self_attn.A_log", 3, [22, 21, 21]),
        (LAYERS + "0.self_attn.q_conv1d.weight", 3, [2816, 2688, 2688]),
        (LAYERS + "3.self_attn.q_b_proj.weight", 3, [5632, 5376, 5376]),
        (LAYERS + "3.self_attn.kv_b_proj.weight", 3, [11_264, 10_752, 10_752]),
        (LAYERS + "45.self_attn.o_proj.weight", 3, [5632, 5376, 5376]),
        (LAYERS + "0.self_attn.o_proj.weight", 3, [2816, 2688, 2688]),
        (LAYERS + "0.mlp.down_proj.weight", 3, [4096, 4096, 4096]),
        (LAYERS + "0.mlp.gate_proj.weight", 2, [6144, 6144]),
    ],
)
def test_shares_are_whole_units_with_the_rest_on_the_lowest_ranks(config, name, ranks, sizes):
    parts = shares(split_rule(config, name), ranks)
    assert [len(part) for part in parts] == sizes
    assert parts[0].start == 0
    assert all(a.stop == b.start for a, b in pairwise(parts))


def test_every_name_has_one_split_rule_that_covers_its_axis(config, tensors):
    for name, spec in tensors.items():
        rule = split_rule(config, name)
        assert (rule.reason == "unused") == (spec.part == "vision")
        if rule.axis is not None:
            assert rule.unit * rule.units == spec.shape[rule.axis], name


@pytest.mark.parametrize("name", ["model.language_model.layers.0.self_attn.r_proj.weight", "head.weight", ""])
def test_an_unknown_name_has_no_split_rule(config, name):
    with pytest.raises(UnknownTensorError, match="no split rule"):
        split_rule(config, name)
