"""What `audit` says about an architecture's tensors, and what `summarize` counts."""

import gzip
import json
from pathlib import Path

import msgspec
import pytest

from intarsia.checkpoint import audit, open_checkpoint, resolve, summarize
from intarsia.checkpoint.checkpoint import nearest
from tests.checkpoint.build import (
    compressed,
    encoded,
    header_of,
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
)

DATA = Path(__file__).parents[1] / "data"
EXPECTED = {f"model.layers.{layer}.q_proj.weight": (64, 32) for layer in range(3)} | {
    "model.norm.weight": (32,)
}


def model(folder, layers=3, **extra):
    modules = {f"model.layers.{layer}.q_proj": nvfp4(64, 32) for layer in range(layers)} | extra
    modules["model.norm"] = {"weight": plain(1, 32)["weight"][0]}
    return make(folder, modules, modelopt("NVFP4"), layers=2)


def test_tensors_are_held_against_an_architecture(tmp_path):
    assert audit(model(tmp_path / "a"), expected=EXPECTED).clean
    assert audit(model(tmp_path / "a2"), expected=EXPECTED).complete
    report = audit(model(tmp_path / "b", layers=2), expected=EXPECTED)
    assert named(report, "missing-tensor") == ["model.layers.2.q_proj.weight"]
    extra = {"model.layers.0.qq_proj": nvfp4(64, 32)}
    report = audit(model(tmp_path / "c", **extra), expected=EXPECTED)
    assert set(named(report, "unexpected-tensor")) == {
        f"model.layers.0.qq_proj.{s}" for s in ("weight", "weight_scale", "weight_scale_2", "input_scale")
    }
    assert any("nearest: model.layers.0.q_proj.weight" in item.action for item in report.violations)


def test_a_bias_must_be_expected(tmp_path):
    biased = {"model.layers.0.q_proj": nvfp4(64, 32) | {"bias": plain(1, 64)["weight"][0]}}
    folder = model(tmp_path / "m", **biased)
    assert audit(folder).clean
    assert named(audit(folder, expected=EXPECTED), "unexpected-tensor") == ["model.layers.0.q_proj.bias"]


def test_optional_groups_are_whole_or_absent(tmp_path):
    mtp = {"model.layers.2.q_proj.weight", "model.layers.2.norm.weight"}
    expected = EXPECTED | {"model.layers.2.norm.weight": (32,)}
    absent = audit(model(tmp_path / "a", layers=2), expected=expected, optional={"MTP layer": mtp})
    assert absent.clean
    assert "group-absent" in notes(absent)
    partial = audit(model(tmp_path / "b"), expected=expected, optional={"MTP layer": mtp})
    assert named(partial, "group-partial") == ["MTP layer"]
    assert named(partial, "missing-tensor") == ["model.layers.2.norm.weight"]


def test_the_published_inventory_is_clean(tmp_path):
    with gzip.open(DATA / "derived_headers_nvidia_nvfp4.json.gz") as file:
        names = json.load(file)
    layers = {f".layers.{layer}." for layer in (2, 3, 45)}
    spec = {
        name: (dtype, tuple(shape))
        for name, (dtype, shape) in names.items()
        if ".layers." not in name or any(layer in name for layer in layers)
    }
    config = json.loads((DATA / "nvidia_GLM-5.3-Flash-NVFP4.config.json").read_text())
    quantization = config.pop("quantization_config")
    report = audit(sparse(tmp_path, spec, quantization, shards=3, **config))
    assert report.violations == ()
    assert report.modules == {"NVFP4": 3 + 3 * 288, "plain": sum(report.modules.values()) - 3 - 3 * 288}


def test_a_third_partys_mixed_metadata_is_read():
    config = json.loads((DATA / "third_party_nvfp4_attn_w4a16.config.json").read_text())
    recipes = config["quantization_config"]["quantized_layers"]
    assert {entry["quant_algo"] for entry in recipes.values()} == {"NVFP4", "W4A16_NVFP4"}


@pytest.mark.parametrize("name", ["nvidia_GLM-5.3-Flash-NVFP4", "third_party_nvfp4_attn_w4a16"])
def test_published_metadata_parses_without_a_complaint(tmp_path, name):
    shard(tmp_path / "model.safetensors", *header_of({"lm_head.weight": ("BF16", (8, 8))}))
    (tmp_path / "config.json").write_bytes((DATA / f"{name}.config.json").read_bytes())
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.quantization.kv_algo == "FP8"
    assert checkpoint.quantization.producer[0] == "modelopt"


def test_the_summary_counts_each_shard_once_and_each_module_in_its_class(tmp_path):
    layers = {
        "model.layers.0.mlp.experts": {"quant_algo": "NVFP4", "weight_scale_encoding": "csf_32x2_v1"},
        "model.layers.1.q_proj": {"quant_algo": "mxfp8"},
    }
    modules = {
        f"model.layers.0.mlp.experts.{e}.up_proj": compressed(nvfp4(64, 64, e), "csf_32x2_v1")
        for e in range(4)
    }
    modules |= {"model.layers.1.q_proj": encoded("MXFP8", 32, 64), "model.visual.blocks.0.fc": plain()}
    folder = make(tmp_path / "m", modules, mixed(layers), layers=1, model_type="x", architectures=["Y"])
    summary = summarize(folder)
    assert summary.violations == []
    rows = {row.name: row for row in summary.classes}
    experts = rows["model.layers.*.mlp.experts.*.up_proj"]
    assert (experts.format, experts.codec, experts.modules) == ("NVFP4", "csf_32x2_v1", 4)
    assert experts.elements == 4 * 64 * 64
    assert rows["model.layers.*.q_proj"].part == "mtp"
    assert rows["model.visual.blocks.*.fc"].part == "vision"
    assert sum(row.bytes for row in summary.classes) == summary.tensor_bytes
    assert summary.weight_bytes == (folder / "model.safetensors").stat().st_size
    assert {(row.recipe, row.written) for row in summary.recipes} == {
        ("NVFP4 (csf_32x2_v1)", "NVFP4"),
        ("MXFP8", "mxfp8"),
    }
    assert {row.format: row.modules for row in summary.formats} == {"NVFP4": 4, "MXFP8": 1, "BF16": 1}
    assert [(group.name, group.state) for group in summary.groups] == [
        ("mtp", "present"),
        ("vision", "present"),
    ]
    again = msgspec.json.decode(msgspec.json.encode(summary))
    assert again["path"] == str(folder)


def test_the_summary_of_a_damaged_checkpoint_lists_what_is_wrong(tmp_path):
    folder = model(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(b"short")
    summary = summarize(folder)
    assert [item.rule for item in summary.violations] == ["header-truncated"]
    assert summary.tensors == 0


def test_groups_that_the_caller_knows(tmp_path):
    names = set(EXPECTED)
    optional = {"all": names, "some": names | {"nowhere"}, "none": {"nowhere"}}
    states = {group.name: group.state for group in summarize(model(tmp_path / "m"), optional=optional).groups}
    assert states == {"all": "present", "some": "partial", "none": "absent"}


def test_sub_byte_types_are_named(tmp_path):
    shard(tmp_path / "model.safetensors", *header_of({"a.weight": ("F4", (4, 4))}))
    summary = summarize(tmp_path)
    assert [item.rule for item in summary.notes] == ["sub-byte-type"]
    assert rules(audit(tmp_path)) == {"scale-lost"}


def test_nearest_names_come_from_a_bounded_search():
    names = {
        f"model.layers.{layer}.mlp.experts.{e}.up_proj.weight" for layer in range(40) for e in range(300)
    }
    assert nearest("model.layers.7.mlp.experts.7.upp_proj.weight", names)
    assert nearest("something else entirely", names) == []


def test_a_module_knows_its_bytes(tmp_path):
    modules = resolve(open_checkpoint(model(tmp_path / "m"))).modules
    assert modules["model.layers.0.q_proj"].nbytes == 64 * 16 + 64 * 2 + 4 + 4


def test_a_flood_of_violations_is_counted_but_not_kept(tmp_path):
    folder = model(tmp_path / "m")
    expected = EXPECTED | {f"model.layers.{n}.lost.weight": (1,) for n in range(5000)}
    lost = [item for item in audit(folder, expected=expected).violations if item.rule == "missing-tensor"]
    assert len(lost) == 1001
    assert "4,000 further" in lost[-1].found


def test_a_large_folder_around_a_checkpoint_is_not_walked_through(tmp_path, monkeypatch):
    folder = model(tmp_path / "m")
    index = {"weight_map": dict.fromkeys(open_checkpoint(folder).tensors, "model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    deep = folder / "/".join("abcdefgh")
    deep.mkdir(parents=True)
    shard(deep / "x.safetensors", {}, b"")
    for number in range(60):
        (folder / f"f{number}").mkdir()
    shard(folder / "z" / "last.safetensors", {}, b"")
    assert named(audit(folder), "shard-outside-index") == ["z/last.safetensors"]
    monkeypatch.setattr("intarsia.checkpoint.index.MAX_FOLDERS", 20)
    assert audit(folder).clean
