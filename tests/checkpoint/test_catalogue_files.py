"""Published faults of values, layouts and files (24 to 56), each with its right outcome.

The numbers are those of the catalogue in docs/checkpoints.md.
"""

import json

import pytest
import torch

from intarsia import formats
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
    notes,
    nvfp4,
    plain,
    rules,
    shard,
    sparse,
    with_scale_byte,
)


@pytest.mark.parametrize("byte", [0x7F, 0xFF, 0x80, 0xB8])
def test_24_a_scale_with_a_sign_or_a_nan_is_named_by_row_and_block(tmp_path, byte):
    modules = {"model.q": with_scale_byte(nvfp4(), 5, 1, byte)}
    report = audit(make(tmp_path / "m", modules, modelopt("NVFP4")), values=True)
    (violation,) = report.violations
    assert violation.rule == "scale-value"
    assert violation.where == "model.q.weight_scale [5, 1]"
    assert f"{byte:#04x}" in violation.found


def test_25_a_zero_scale_over_codes_is_a_warning(tmp_path):
    modules = {"model.q": with_scale_byte(nvfp4(), 5, 1, 0)}
    report = audit(make(tmp_path / "m", modules, modelopt("NVFP4")), values=True)
    assert report.clean
    assert [item.where for item in report.notes if item.rule == "zero-scale"] == [
        "model.q.weight_scale [5, 1]"
    ]
    stored = formats.get("NVFP4").decode(modules["model.q"])
    assert not stored[5, 16:32].any()


def test_26_the_pattern_of_an_all_zero_export_is_named(tmp_path):
    modules = {
        "model.zero4": {
            "weight": torch.full((32, 16), 0x77, dtype=torch.uint8),
            "weight_scale": torch.full((32, 2), 0xFF, dtype=torch.uint8).view(torch.float8_e4m3fn),
            "weight_scale_2": torch.tensor(0.0),
            "input_scale": torch.tensor(1.0),
        },
        "model.zero8": {
            "weight": torch.full((32, 32), 0xFF, dtype=torch.uint8).view(torch.float8_e4m3fn),
            "weight_scale": torch.tensor(0.0),
        },
    }
    layers = {"model.zero4": {"quant_algo": "NVFP4"}, "model.zero8": {"quant_algo": "FP8"}}
    report = audit(make(tmp_path / "m", modules, mixed(layers)), values=True)
    assert named(report, "all-zero-export") == ["model.zero4"]
    assert named(report, "nan-code") == ["model.zero8.weight [0, 0]"]
    assert named(report, "scale-value") == ["model.zero8.weight_scale"]


@pytest.mark.parametrize(
    ("change", "rule", "suffix"),
    [
        ({"weight_scale": ("F8_E4M3", (2048, 64))}, "scale-grid", "weight_scale"),
        ({"weight_quantizer._double_scale": ("F32", ())}, "stray-tensor", "weight_quantizer._double_scale"),
        ({"weight_scale": ("U8", (2048 * 128,))}, "scale-grid", "weight_scale"),
    ],
    ids=["half width", "leaked tensor", "swizzled"],
)
def test_27_scales_of_another_layout_and_leaked_tensors_are_refused(tmp_path, change, rule, suffix):
    spec = {
        "weight": ("U8", (2048, 1024)),
        "weight_scale": ("F8_E4M3", (2048, 128)),
        "weight_scale_2": ("F32", ()),
    } | change
    folder = sparse(tmp_path / "m", {f"model.q.{k}": v for k, v in spec.items()}, modelopt("W4A16_NVFP4"))
    assert f"model.q.{suffix}" in named(audit(folder), rule)


def test_29_and_30_a_dividing_global_scale_is_known_by_its_name_and_kept(tmp_path):
    config = {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "config_groups": {"group_0": ct_group(["Linear"], 4, "tensor_group")},
    }
    modules = {"model.q": ct_packed(), "model.k": ct_packed() | {"weight_global_scale": torch.tensor([0.0])}}
    folder = make(tmp_path / "m", modules, config)
    report = audit(folder, values=True)
    assert set(formats_of(folder).values()) == {"NVFP4_PACK_QUANTIZED"}
    assert named(report, "recipe-not-read") == ["model.q", "model.k"]
    assert named(report, "scale-value") == ["model.k.weight_global_scale [0]"]
    with open_checkpoint(folder).reader() as reader:
        assert reader.read("model.q.weight_global_scale").tolist() == [3584.0]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float8_e8m0fnu], ids=["U8", "F8_E8M0"])
def test_31_32_33_exponent_bytes_are_bytes(tmp_path, dtype):
    raw = torch.tensor([[0, 1], [126, 127], [128, 254], [108, 120]], dtype=torch.uint8)
    tensors = {"weight": torch.ones(4, 64).to(torch.float8_e4m3fn), "weight_scale": raw.view(dtype)}
    folder = make(tmp_path / "m", {"model.q": tensors}, modelopt("MXFP8"))
    assert audit(folder, values=True).clean
    with open_checkpoint(folder).reader() as reader:
        scale = reader.read("model.q.weight_scale")
        stored = {"weight": reader.read("model.q.weight"), "weight_scale": scale}
    assert scale.dtype == torch.uint8
    assert torch.equal(scale, raw)
    values = formats.get("MXFP8").decode(stored, torch.float32)
    assert values[3, 0] == 2.0**-19
    assert values[0, 0] == 2.0**-127


def test_33_exponent_byte_255_is_refused(tmp_path):
    modules = {"model.q": with_scale_byte(encoded("MXFP8", 32, 64), 7, 1, 255)}
    report = audit(make(tmp_path / "m", modules, modelopt("MXFP8")), values=True)
    assert named(report, "scale-value") == ["model.q.weight_scale [7, 1]"]


def test_34_mxfp4_of_compressed_tensors_is_refused_for_its_changing_bias(tmp_path):
    config = {
        "quant_method": "compressed-tensors",
        "format": "mxfp4-pack-quantized",
        "config_groups": {"group_0": ct_group(["Linear"], 4, "group")},
    }
    report = audit(make(tmp_path / "m", {"model.q": encoded("MXFP4", 32, 32)}, config))
    assert "unknown-recipe" in rules(report)


def test_35_a_global_scale_that_is_not_float32_is_refused(tmp_path):
    tensors = nvfp4()
    tensors["weight_scale_2"] = tensors["weight_scale_2"].bfloat16()
    report = audit(make(tmp_path / "m", {"model.q": tensors}, modelopt("NVFP4")))
    assert named(report, "global-dtype") == ["model.q.weight_scale_2"]


def test_36_subnormal_scales_are_numbers_like_others(tmp_path):
    tensors = nvfp4()
    tensors["weight_scale"] = torch.full((32, 2), 1, dtype=torch.uint8).view(torch.float8_e4m3fn)
    tensors["weight_scale_2"] = torch.tensor(1.0)
    folder = make(tmp_path / "m", {"model.q": tensors}, modelopt("NVFP4"))
    assert audit(folder, values=True).clean
    tensors["weight"] = torch.full((32, 16), 0x22, dtype=torch.uint8)
    assert set(formats.get("NVFP4").decode(tensors).unique().tolist()) == {2.0**-9}


def test_37_shapes_stay_as_they_are(tmp_path):
    spec = {
        "model.q.weight": ("U8", (2880, 720)),
        "model.q.weight_scale": ("F8_E4M3", (2880, 90)),
        "model.q.weight_scale_2": ("F32", ()),
    }
    checkpoint = open_checkpoint(sparse(tmp_path / "m", spec, modelopt("W4A16_NVFP4")))
    assert resolve(checkpoint).modules["model.q"].shape == (2880, 1440)
    padded = spec | {"model.q.weight_scale": ("F8_E4M3", (2944, 92))}
    report = audit(sparse(tmp_path / "n", padded, modelopt("W4A16_NVFP4")))
    assert named(report, "scale-grid") == ["model.q.weight_scale"]


def test_41_and_49_logical_shapes_are_compared_with_the_architecture(tmp_path):
    folder = make(tmp_path / "m", {"model.q": nvfp4(64, 32)}, modelopt("NVFP4"))
    assert audit(folder, expected={"model.q.weight": (64, 32)}).clean
    report = audit(folder, expected={"model.q.weight": (32, 64)})
    (violation,) = report.violations
    assert violation.rule == "tensor-shape"
    assert "transpose" in violation.found


def test_42_every_file_and_every_name_of_the_index_must_exist(tmp_path):
    folder = sparse(tmp_path / "m", {"a.weight": ("BF16", (4, 4)), "b.weight": ("BF16", (4, 4))}, shards=2)
    index = folder / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"] |= {"c.weight": "gone.safetensors", "d.weight": document["weight_map"]["a.weight"]}
    index.write_text(json.dumps(document))
    report = audit(folder)
    assert named(report, "missing-shard") == ["gone.safetensors"]
    assert named(report, "missing-tensor") == ["d.weight"]


def test_43_a_file_cut_short_anywhere_is_refused(tmp_path):
    folder = make(tmp_path / "m", {"model.q": plain(64, 64)})
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    for part in range(64):
        path.write_bytes(whole[: len(whole) * part // 64])
        with pytest.raises(InvalidCheckpointError):
            open_checkpoint(folder)
    path.write_bytes(whole)
    open_checkpoint(folder)


def test_44_shards_and_tensors_outside_the_index_and_duplicates_are_reported(tmp_path):
    folder = sparse(tmp_path / "m", {"a.weight": ("BF16", (4, 4)), "b.weight": ("BF16", (4, 4))}, shards=2)
    shard(folder / "old" / "stale.safetensors", {}, b"")
    assert named(audit(folder), "shard-outside-index") == ["old/stale.safetensors"]
    (folder / "old" / "stale.safetensors").unlink()
    index = folder / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    entry = {"dtype": "BF16", "shape": [4, 4], "data_offsets": [0, 32]}
    both = {"a.weight": entry, "b.weight": entry | {"data_offsets": [32, 64]}}
    shard(folder / "model-00002-of-00002.safetensors", both, 64)
    report = audit(folder)
    assert named(report, "duplicate-tensor") == ["a.weight"]
    del document["weight_map"]["b.weight"]
    index.write_text(json.dumps(document))
    shard(folder / "model-00001-of-00002.safetensors", both, 64)
    assert named(audit(folder), "tensor-outside-index") == ["b.weight"]


@pytest.mark.parametrize(
    ("names", "complete"),
    [
        (["model.safetensors"], True),
        (["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"], True),
        (["model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"], False),
        (["model-00001-of-00003.safetensors"], False),
        (["a.safetensors", "b.safetensors"], False),
        (["model-00001-of-00002.safetensors", "other-00002-of-00002.safetensors"], False),
    ],
    ids=str,
)
def test_45_shards_without_an_index_must_prove_their_number(tmp_path, names, complete):
    for number, name in enumerate(names):
        entry = {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}
        shard(tmp_path / name, {f"t{number}": entry}, 4)
    report = audit(tmp_path)
    assert report.clean == complete
    if not complete:
        assert "missing-index" in rules(report)


def test_46_all_companions_of_a_module_travel_together(tmp_path):
    tensors = nvfp4()
    del tensors["weight_scale_2"]
    report = audit(make(tmp_path / "m", {"lm_head": tensors}, modelopt("NVFP4")))
    assert "lm_head.weight_scale_2" in named(report, "missing-companion")
    renamed = nvfp4()
    renamed["weight_scale.weight"] = renamed.pop("weight_scale")
    report = audit(make(tmp_path / "n", {"lm_head": renamed}, modelopt("NVFP4")))
    assert "lm_head.weight_scale" in named(report, "missing-companion")


def test_48_stacked_experts_of_other_architectures_are_not_taken_for_plain(tmp_path):
    spec = {
        "model.layers.0.mlp.experts.gate_up_proj_blocks": ("U8", (4, 64, 2, 16)),
        "model.layers.0.mlp.experts.gate_up_proj_scales": ("U8", (4, 64, 2)),
    }
    report = audit(sparse(tmp_path / "m", spec))
    assert not report.clean
    assert report.violations[0].where.startswith("model.layers.0.mlp.experts")


def test_50_tied_embeddings_with_a_head_of_their_own_must_agree(tmp_path):
    table = plain(64, 32)
    same = {"model.embed_tokens": table, "lm_head": {"weight": table["weight"].clone()}}
    assert audit(make(tmp_path / "a", same, tie_word_embeddings=True), values=True).clean
    other = {"model.embed_tokens": table, "lm_head": plain(64, 32, seed=1)}
    report = audit(make(tmp_path / "b", other, tie_word_embeddings=True), values=True)
    assert named(report, "tied-weights-differ") == ["lm_head.weight"]
    assert audit(
        make(tmp_path / "c", {"model.embed_tokens": table}, tie_word_embeddings=True), values=True
    ).clean


def test_51_kv_scales_belong_to_their_projection_or_are_said_to_be_one(tmp_path):
    config = modelopt("NVFP4", kv_cache_scheme={"dynamic": False, "num_bits": 8, "type": "float"})
    tensors = nvfp4() | {"k_scale": torch.tensor(0.01)}
    folder = make(tmp_path / "m", {"model.layers.0.self_attn.k_proj": tensors}, config)
    report = audit(folder, values=True)
    assert report.clean
    assert "kv-scales-absent" not in notes(report)
    without = audit(make(tmp_path / "n", {"model.layers.0.self_attn.k_proj": nvfp4()}, config))
    assert "kv-scales-absent" in notes(without)


def test_52_an_unknown_method_is_fatal(tmp_path):
    folder = make(tmp_path / "m", {"model.q": plain()}, {"quant_method": "gptq", "bits": 4})
    with pytest.raises(InvalidCheckpointError, match="gptq"):
        open_checkpoint(folder)


def test_55_a_recipe_may_be_for_an_embedding(tmp_path):
    layers = {"model.embed_tokens": {"quant_algo": "NVFP4", "group_size": 16}}
    folder = make(
        tmp_path / "m",
        {"model.embed_tokens": nvfp4(64, 32)},
        mixed(layers),
    )
    assert audit(folder).clean
    assert formats_of(folder) == {"model.embed_tokens": "NVFP4"}
