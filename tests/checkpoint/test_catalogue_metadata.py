"""Published faults of metadata, naming and module sets (1 to 23), each with its right outcome.

The numbers are those of the catalogue in docs/checkpoints.md.
"""

import pytest
import torch

from intarsia.checkpoint import audit, open_checkpoint, resolve
from intarsia.checkpoint.errors import InvalidCheckpointError
from tests.checkpoint.build import (
    ct_group,
    ct_packed,
    encoded,
    formats_of,
    make,
    mixed,
    modelopt,
    named,
    nested,
    notes,
    nvfp4,
    plain,
    rules,
    sparse,
    weight,
)


def test_01_wildcards_match_in_the_names_of_the_file(tmp_path):
    modules = {
        "vision_tower.blocks.0.fc": plain(),
        "visual.blocks.0.fc": plain(),
        "model.layers.0.up_proj": nvfp4(),
    }
    folder = make(tmp_path / "m", modules, modelopt("NVFP4", ignore=["vision_tower*"]))
    report = audit(folder)
    assert report.clean
    assert "unmatched-patterns" not in notes(report)


def test_02_excludes_hold_under_every_alias_of_a_prefix(tmp_path):
    for prefix in ("model.language_model.", "language_model.model.", "model."):
        modules = {f"{prefix}layers.3.self_attn.{p}_proj": plain() for p in "qkv"}
        modules[f"{prefix}layers.3.mlp.up_proj"] = nvfp4()
        config = modelopt("NVFP4", ignore=["model.language_model.layers.3.self_attn*"])
        assert audit(make(tmp_path / prefix, modules, config)).clean, prefix


def test_03_a_pattern_matches_whole_components_only(tmp_path):
    modules = {"model.layers.0.mlp.gate": plain(), "model.layers.0.mlp.gate_proj": nvfp4()}
    folder = make(tmp_path / "m", modules, modelopt("NVFP4", ignore=["model.layers.0.mlp.gate"]))
    assert audit(folder).clean
    assert formats_of(folder)["model.layers.0.mlp.gate_proj"] == "NVFP4"


@pytest.mark.parametrize("producer", [{"name": "modelopt", "version": "0.47.0"}, {}], ids=["named", "legacy"])
def test_04_layer_1_is_not_layer_11(tmp_path, producer):
    modules = {f"model.layers.{i}.up_proj": nvfp4(seed=i) for i in range(12) if i != 1}
    modules["model.layers.1.up_proj"] = plain()
    config = modelopt("NVFP4", ignore=["model.layers.1"]) | {"producer": producer}
    folder = make(tmp_path / "m", modules, config)
    assert audit(folder).clean
    assert [name for name, kind in formats_of(folder).items() if kind is None] == ["model.layers.1.up_proj"]


def test_05_a_corrupt_exclude_list_is_reported_and_the_tensors_decide(tmp_path):
    modules = {
        "model.layers.0.mixer.conv1d": {"weight": weight(32, 4)},
        "model.layers.0.mixer.in_proj": plain(),
        "model.layers.0.up_proj": nvfp4(),
    }
    ignore = ["model.layers.0.mixer.conv1d~junk", "model.layers.0.mixer.in_proj~junk"]
    folder = make(tmp_path / "m", modules, modelopt("NVFP4", ignore=ignore))
    report = audit(folder)
    assert report.clean
    assert notes(report) >= {"exclude-list-corrupt", "unmatched-patterns"}
    assert formats_of(folder)["model.layers.0.mixer.in_proj"] is None


def test_06_an_excluded_module_with_packed_tensors_is_a_contradiction(tmp_path):
    folder = make(tmp_path / "m", {"lm_head": nvfp4()}, modelopt("NVFP4", ignore=["lm_head*"]))
    report = audit(folder)
    assert named(report, "undeclared-format") == ["lm_head"]
    assert formats_of(folder)["lm_head"] == "NVFP4"


def test_07_a_field_of_one_carrier_is_taken_from_it(tmp_path):
    legacy = nested("NVFP4", kv_cache_quant_algo="FP8", group_size=16, exclude_modules=[])
    folder = make(tmp_path / "m", {"model.layers.0.up_proj": nvfp4()}, modelopt("NVFP4"), legacy)
    assert open_checkpoint(folder).quantization.kv_algo == "FP8"


def test_08_carriers_that_disagree_about_the_kv_cache_stop_with_both_values(tmp_path):
    config = modelopt("NVFP4", kv_cache_scheme={"dynamic": False, "num_bits": 8, "type": "float"})
    folder = make(tmp_path / "m", {"model.layers.0.up_proj": nvfp4()}, config, nested("NVFP4"))
    with pytest.raises(InvalidCheckpointError) as caught:
        open_checkpoint(folder)
    (violation,) = caught.value.violations
    assert violation.rule == "kv-disagreement"
    assert "FP8 in config.json" in violation.found
    assert "None in hf_quant_config.json" in violation.found


MAP = {"model.layers.0.up_proj": {"quant_algo": "NVFP4", "group_size": 16}}


@pytest.mark.parametrize(
    ("config", "legacy"),
    [
        (mixed(MAP), None),
        (None, nested("MIXED_PRECISION", quantized_layers=MAP)),
        (modelopt("MIXED_PRECISION"), nested("MIXED_PRECISION", quantized_layers=MAP)),
        (modelopt("mixed_precision", quantized_layers={"quantized_layers": MAP}), None),
        (None, mixed(MAP)),
        (None, {"quantization": {"quant_algo": "MIXED_PRECISION"}, "quantized_layers": MAP}),
    ],
    ids=["flat", "nested", "split", "doubly nested", "flat in the other file", "map at the top"],
)
def test_09_mixed_precision_is_read_from_every_carrier(tmp_path, config, legacy):
    modules = {"model.layers.0.up_proj": nvfp4(), "model.layers.0.down_proj": plain()}
    folder = make(tmp_path / "m", modules, config, legacy)
    assert audit(folder).clean
    assert formats_of(folder) == {"model.layers.0.up_proj": "NVFP4", "model.layers.0.down_proj": None}


def test_09_mixed_precision_without_a_map_is_refused(tmp_path):
    folder = make(tmp_path / "m", {"model.layers.0.up_proj": nvfp4()}, modelopt("MIXED_PRECISION"))
    assert "mixed-without-layers" in rules(audit(folder))


def test_10_nothing_is_inherited_from_a_sibling(tmp_path):
    attention = "model.layers.0.self_attn."
    layers = {attention + "o_proj": {"quant_algo": "NVFP4", "group_size": 16}}
    modules = {attention + "o_proj": nvfp4(), attention + "q_proj": plain(), attention + "k_proj": plain()}
    config = mixed(layers)
    folder = make(tmp_path / "plain", modules, config)
    assert audit(folder).clean
    assert formats_of(folder)[attention + "q_proj"] is None
    modules[attention + "q_proj"] = nvfp4(seed=1)
    report = audit(make(tmp_path / "packed", modules, config))
    assert named(report, "undeclared-format") == [attention + "q_proj"]


MTP_EXPERT = {
    "model.layers.48.mlp.experts.0.up_proj.weight": ("F8_E4M3", (2560, 640)),
    "model.layers.48.mlp.experts.0.up_proj.weight_scale_inv": ("BF16", (20, 5)),
}


def test_11_block_fp8_has_aliases_and_mtp_layers_have_two_numbers(tmp_path):
    layers = {"mtp.layers.0.mlp.experts": {"quant_algo": "FP8_BLOCK_SCALES", "group_size": 128}}
    config = mixed(layers)
    folder = sparse(tmp_path / "m", MTP_EXPERT, config, num_hidden_layers=48)
    assert audit(folder).clean
    assert formats_of(folder) == {"model.layers.48.mlp.experts.0.up_proj": "FP8_PB_WO"}


def test_11_an_unknown_algorithm_is_fatal_and_names_the_module(tmp_path):
    layers = {"mtp.layers.7.never_matched": {"quant_algo": "FP7_BLOCKS"}}
    config = mixed(layers)
    with pytest.raises(InvalidCheckpointError, match=r"mtp\.layers\.7\.never_matched.*FP7_BLOCKS"):
        open_checkpoint(sparse(tmp_path / "m", MTP_EXPERT, config))


@pytest.mark.parametrize("name", ["weight_scale", "weight_scale_inv"])
@pytest.mark.parametrize("grid", [(80, 20), (80, 1, 20, 1)], ids=["rank 2", "rank 4"])
def test_12_block_fp8_scales_have_two_names_and_two_ranks(tmp_path, name, grid):
    spec = {"model.q.weight": ("F8_E4M3", (10240, 2560)), f"model.q.{name}": ("F32", grid)}
    folder = sparse(tmp_path / "m", spec, modelopt("FP8_PB_WO"))
    assert audit(folder).clean
    assert formats_of(folder) == {"model.q": "FP8_PB_WO"}


def test_13_a_grid_that_a_head_split_would_cut_is_read_whole(tmp_path):
    spec = {
        "model.layers.0.self_attn.kv_b_proj.weight": ("F8_E4M3", (28672, 512)),
        "model.layers.0.self_attn.kv_b_proj.weight_scale": ("F32", (224, 4)),
    }
    checkpoint = open_checkpoint(sparse(tmp_path / "m", spec, modelopt("FP8_PB_WO")))
    assert resolve(checkpoint).modules["model.layers.0.self_attn.kv_b_proj"].shape == (28672, 512)
    head = range(448)  # 3.5 blocks: rows are bytes of their own, only the scales are shared
    with checkpoint.reader() as reader:
        assert reader.read_rows(checkpoint.entry(next(iter(spec))), head).shape == (448, 512)


def test_14_the_mtp_layer_is_judged_by_its_tensors(tmp_path):
    modules = {
        "model.layers.0.up_proj": nvfp4(),
        "model.layers.1.up_proj": nvfp4(),
        "model.layers.2.up_proj": plain(),
    }
    assert audit(make(tmp_path / "m", modules, modelopt("NVFP4"), layers=2)).clean
    report = audit(make(tmp_path / "n", modules, modelopt("NVFP4"), layers=3))
    assert named(report, "declared-but-plain") == ["model.layers.2.up_proj.weight"]


def test_15_routers_need_no_exclude(tmp_path):
    modules = {"model.layers.0.mlp.gate": plain(), "model.layers.0.mlp.up_proj": nvfp4()}
    assert audit(make(tmp_path / "m", modules, modelopt("NVFP4"))).clean


def test_16_names_resolve_by_alias_and_a_recipe_needs_tensors(tmp_path):
    layers = {
        "backbone.layers.0.up_proj": {"quant_algo": "NVFP4"},
        "backbone.layers.9.up_proj": {"quant_algo": "NVFP4"},
    }
    folder = make(
        tmp_path / "m",
        {"model.layers.0.up_proj": nvfp4()},
        mixed(layers),
    )
    report = audit(folder)
    assert named(report, "recipe-without-tensors") == ["backbone.layers.9.up_proj"]
    assert formats_of(folder)["model.layers.0.up_proj"] == "NVFP4"


@pytest.mark.parametrize("order", [("group_0", "group_1"), ("FP8", "NVFP4"), ("z", "a")], ids=str)
def test_17_and_53_overlapping_groups_are_resolved_by_module(tmp_path, order):
    groups = {
        order[0]: ct_group([r"re:.*layers\.(56|57)\..*"], 8, "channel"),
        order[1]: ct_group([r"re:.*layers\.5\d\..*"], 4, "tensor_group"),
    }
    modules = {
        "model.layers.55.q_proj": ct_packed(),
        "model.layers.56.q_proj": encoded("FP8_PER_CHANNEL_PER_TOKEN", 32, 32),
        "model.layers.57.q_proj": ct_packed(),
    }
    config = {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": groups}
    folder = make(tmp_path / "m", modules, config)
    assert formats_of(folder) == {
        "model.layers.55.q_proj": "NVFP4_PACK_QUANTIZED",
        "model.layers.56.q_proj": "FP8_PER_CHANNEL_PER_TOKEN",
        "model.layers.57.q_proj": "NVFP4_PACK_QUANTIZED",
    }
    assert rules(audit(folder)) == {"recipe-not-read"}


def expert_modules(count: int = 2, container: str = "model.layers.0.mlp.experts") -> dict:
    return {
        f"{container}.{e}.{p}": nvfp4(seed=3 * e + n)
        for e in range(count)
        for n, p in enumerate(("gate_proj", "up_proj", "down_proj"))
    }


def test_18_different_globals_of_gate_and_up_are_reported_and_kept(tmp_path):
    modules = expert_modules(1)
    modules["model.layers.0.mlp.experts.0.gate_proj"]["weight_scale_2"] = torch.tensor(3.85e-5)
    modules["model.layers.0.mlp.experts.0.up_proj"]["weight_scale_2"] = torch.tensor(4.83e-5)
    folder = make(tmp_path / "m", modules, modelopt("NVFP4"))
    report = audit(folder, values=True)
    assert report.clean
    assert "fused-globals-differ" in notes(report)
    with open_checkpoint(folder).reader() as reader:
        stored = [
            reader.read(f"model.layers.0.mlp.experts.0.{p}_proj.weight_scale_2").item()
            for p in ("gate", "up")
        ]
    assert stored == [torch.tensor(3.85e-5).item(), torch.tensor(4.83e-5).item()]


def test_19_equal_globals_of_a_fused_group_are_never_assumed(tmp_path):
    attention = "model.layers.0.self_attn."
    layers = {attention + "q_proj": {"quant_algo": "FP8"}} | {
        attention + f"{p}_proj": {"quant_algo": "NVFP4", "group_size": 16} for p in "kv"
    }
    modules = {attention + "q_proj": encoded("FP8", 32, 32)} | {
        attention + f"{p}_proj": nvfp4(seed=n) for n, p in enumerate("kv")
    }
    folder = make(tmp_path / "m", modules, mixed(layers))
    assert audit(folder, values=True).clean
    with open_checkpoint(folder).reader() as reader:
        k, v = (reader.read(f"{attention}{p}_proj.weight_scale_2") for p in "kv")
    assert k != v


def test_20_lost_input_scales_are_listed(tmp_path):
    modules = expert_modules(8)
    lost = [f"model.layers.0.mlp.experts.{e}.up_proj" for e in (2, 5)]
    for name in lost:
        del modules[name]["input_scale"]
    report = audit(make(tmp_path / "m", modules, modelopt("NVFP4")))
    assert named(report, "missing-companion") == [f"{name}.input_scale" for name in lost]


@pytest.mark.parametrize("number", [21, 54])
def test_21_and_54_nvfp4_without_any_input_scale_is_weight_only(tmp_path, number):
    groups = {"group_0": {"input_activations": None, "weights": {"num_bits": 4}, "targets": ["Linear"]}}
    name = f"model.layers.{number}.up_proj"
    folder = make(tmp_path / "m", {name: encoded("NVFP4", 32, 32)}, modelopt("NVFP4", config_groups=groups))
    report = audit(folder)
    assert report.clean
    assert notes(report) == {"weight-only"}
    assert formats_of(folder) == {name: "W4A16_NVFP4"}


@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
def test_22_a_fused_module_may_have_one_number_for_all_its_parts(tmp_path, shape):
    tensors = encoded("NVFP4", 64, 32)
    tensors["input_scale"] = torch.full(shape, 0.5)
    folder = make(tmp_path / "m", {"model.layers.0.mlp.gate_up_proj": tensors}, modelopt("NVFP4"))
    assert audit(folder, values=True).clean


def test_23_a_lost_scale_is_found_before_anything_is_allocated(tmp_path):
    spec = {"model.q.weight": ("U8", (1 << 20, 1 << 17)), "model.q.weight_scale_2": ("F32", ())}
    report = audit(sparse(tmp_path / "m", spec, modelopt("W4A16_NVFP4")))
    assert named(report, "missing-companion") == ["model.q.weight_scale"]
