"""An export is exactly its manifest's selection, or the audit says in what it is not."""

import json

import pytest
import torch

from intarsia.checkpoint import modules, open_checkpoint, write_checkpoint
from intarsia.loading.export import convert
from intarsia.loading.verify import verify_export
from intarsia.selection.expect import expect
from intarsia.selection.manifest import Manifest, ScalePolicy, Section
from intarsia.selection.recipes import apply_recipe
from intarsia.selection.source import source_of

L = "model.language_model.layers."


def rules(violations):
    return sorted({violation.rule for violation in violations})


@pytest.fixture
def spark(small, tmp_path):
    source = small()
    manifest = apply_recipe("spark", source_of(source))
    return source, manifest, convert(source.path, tmp_path / "spark", manifest=manifest)


@pytest.mark.parametrize("recipe", ["spark", "fp4-local", "nvfp4-experts"])
def test_every_recipe_is_clean(small, tmp_path, recipe):
    source = small()
    manifest = apply_recipe(recipe, source_of(source))
    out = convert(source.path, tmp_path / "out", manifest=manifest)
    assert verify_export(out, manifest, source=source) == []
    assert expect(out, manifest) == []


def test_a_manifest_by_hand_is_clean(small, tmp_path):
    source = small()
    manifest = Manifest(
        schema="intarsia.manifest/1",
        main=Section(
            targets={"lm_head": "FP8_PER_CHANNEL_PER_TOKEN", "layers.0.mlp.gate_up_proj": "FP8"},
            scales=ScalePolicy("csf"),
        ),
        draft=Section(targets={"mtp.self_attn.o_proj": "MXFP4"}),
    )
    out = convert(source.path, tmp_path / "out", manifest=manifest)
    assert verify_export(out, manifest, source=source) == []


def test_one_changed_byte_fails(spark):
    source, manifest, out = spark
    entry = out.tensors[f"{L}2.mlp.experts.3.down_proj.weight"]
    with out.shard(entry.shard).path.open("r+b") as file:
        file.seek(entry.begin + 17)
        byte = file.read(1)
        file.seek(entry.begin + 17)
        file.write(bytes([byte[0] ^ 1]))
    changed = open_checkpoint(out.path)
    found = verify_export(changed, manifest)
    assert [(v.rule, v.where) for v in found] == [("changed-bytes", entry.name)]
    (out.path / "conversion.json").unlink()
    assert verify_export(changed, manifest) == []  # nothing to hold the bytes against
    found = verify_export(changed, manifest, source=source)
    assert [(v.rule, v.where) for v in found] == [("other-value", entry.name)]


def test_a_missing_target_fails(spark):
    _, manifest, out = spark
    more = dict(manifest.main.targets) | {f"{L}0.mlp.gate_up_proj": "MXFP8"}
    wider = Manifest(
        schema="intarsia.manifest/1",
        main=Section(targets=more),
        draft=manifest.draft,
        source=manifest.source,
    )
    found = verify_export(out, wider)
    assert {(v.rule, v.where) for v in found} == {
        ("not-converted", f"{L}0.mlp.{name}_proj") for name in ("gate", "up")
    }


def test_an_extra_conversion_fails(spark):
    _, manifest, out = spark
    targets = {name: f for name, f in manifest.main.targets.items() if "o_proj" not in name}
    narrower = Manifest(schema="intarsia.manifest/1", main=Section(targets=targets), draft=manifest.draft)
    found = verify_export(out, narrower)
    assert {(v.rule, v.where) for v in found} == {
        ("extra-conversion", f"{L}{layer}.self_attn.o_proj") for layer in (0, 1)
    }


def test_another_format_of_the_right_name_fails(spark):
    _, manifest, out = spark
    other = dict(manifest.main.targets) | {f"{L}0.self_attn.o_proj": "FP8"}
    wrong = Manifest(schema="intarsia.manifest/1", main=Section(targets=other), draft=manifest.draft)
    (found,) = verify_export(out, wrong)
    assert (found.rule, found.where, found.found) == ("other-format", f"{L}0.self_attn.o_proj", "MXFP8")


def test_other_scales_fail(small, tmp_path):
    source = small()
    manifest = apply_recipe("fp4-local", source_of(source))
    out = convert(source.path, tmp_path / "out", manifest=manifest, csf="slab")
    found = expect(out, manifest)
    assert rules(found) == ["scale-encoding"]
    assert found[0].found.startswith("nvfp4_slab, and 23 more")


def test_a_right_name_with_another_value_fails(small, tmp_path):
    """The weights of another model under the same names: only their bytes tell."""

    def change(tensors):
        tensors[f"{L}0.self_attn.o_proj.weight"].mul_(1.5)

    source, other = small(), small("other", change=change)
    manifest = apply_recipe("spark", source_of(source))
    out = convert(other.path, tmp_path / "out", manifest=manifest)
    assert verify_export(out, manifest) == []
    found = verify_export(out, manifest, source=source)
    assert [v.rule for v in found] == ["other-value"]
    assert found[0].where.startswith(f"{L}0.self_attn.o_proj")


def test_a_foreign_quantizer_fails(spark, tmp_path):
    """Another program quantized a module more, and wrote its metadata too."""
    from intarsia import formats

    _, manifest, out = spark
    name = f"{L}0.mlp.down_proj"
    with out.reader() as reader:
        tensors = {tensor: reader.read(tensor) for tensor in out.tensors}
    stored = formats.get("MXFP8").encode(tensors.pop(f"{name}.weight"))
    tensors |= {f"{name}.{suffix}": tensor for suffix, tensor in stored.items()}
    config = json.loads((out.path / "config.json").read_text())
    entry = {"quant_algo": "MXFP8", "group_size": 32}
    config["quantization_config"]["quantized_layers"][name] = entry
    foreign = write_checkpoint(tmp_path / "foreign", tensors.items(), config=config)
    assert modules(foreign)[name].format == "MXFP8"
    found = verify_export(foreign, manifest)
    assert [(v.rule, v.where) for v in found] == [("extra-conversion", name)]


def test_what_was_quantized_before_is_known(small, tmp_path):
    first = convert(small().path, tmp_path / "first", recipe="nvfp4-experts")
    manifest = apply_recipe("spark", source_of(first))
    second = convert(first.path, tmp_path / "second", manifest=manifest)
    assert verify_export(second, manifest, source=first) == []
    (second.path / "conversion.json").unlink()
    assert rules(verify_export(second, manifest)) == ["extra-conversion"]


def test_a_record_of_another_manifest_or_damaged_is_said(spark):
    _, manifest, out = spark
    record = json.loads((out.path / "conversion.json").read_text())
    record["manifest_sha256"] = "00" * 32
    removed = record["tensors"].popitem()[0]
    (out.path / "conversion.json").write_text(json.dumps(record))
    found = verify_export(out, manifest)
    assert {(v.rule, v.where) for v in found} == {
        ("record-manifest", "conversion.json"),
        ("record-tensor", removed),
    }
    (out.path / "conversion.json").write_text("{")
    assert rules(verify_export(out, manifest)) == ["record"]


def test_a_copied_tensor_that_changed_fails(small, tmp_path):
    source = small()
    manifest = apply_recipe("spark", source_of(source))
    with source.reader() as reader:
        tensors = {name: reader.read(name) for name in source.tensors}
    tensors["model.language_model.norm.weight"] = torch.zeros(128)
    other = write_checkpoint(tmp_path / "other", tensors.items(), config=source.config)
    out = convert(other.path, tmp_path / "out", manifest=manifest)
    found = verify_export(out, manifest, source=source)
    assert [(v.rule, v.where) for v in found] == [("other-value", "model.language_model.norm.weight")]
