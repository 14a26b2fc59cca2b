"""Differences of selections, by name and by what the names mean."""

import msgspec

from intarsia.selection.difference import Difference, diff_checkpoint, diff_manifests
from intarsia.selection.manifest import Manifest, Section
from intarsia.selection.recipes import apply_recipe

L = "model.language_model.layers."


def manifest(targets, **section):
    return Manifest(schema="intarsia.manifest/1", main=Section(targets=targets, **section))


def test_equal_manifests_do_not_differ(tiny_source):
    spark = apply_recipe("spark", tiny_source)
    assert diff_manifests(spark, spark) == []
    assert diff_manifests(spark, spark, tiny_source) == []
    assert diff_manifests(spark, apply_recipe("fp4-local", tiny_source)) != []


def test_targets_and_settings(tiny_source):
    a = manifest({"x": "MXFP8", "y": "FP8"})
    b = manifest({"x": "MXFP8", "y": "MXFP8", "z": "FP8"}, strict=False)
    assert diff_manifests(a, b) == [
        Difference("main: y", "FP8", "MXFP8"),
        Difference("main: z", None, "FP8"),
        Difference("main.strict", "True", "False"),
    ]
    draft = msgspec.structs.replace(a, draft=Section(targets={"m": "FP8"}))
    assert Difference("draft: m", "FP8", None) in diff_manifests(draft, a)


def test_names_are_compared_by_what_they_mean(tiny_source):
    fused = manifest({f"{L}0.mlp.gate_up_proj": "MXFP8"})
    members = manifest({f"{L}0.mlp.{name}_proj": "MXFP8" for name in ("gate", "up")})
    runtime = manifest({"language_model.model.layers.0.mlp.gate_up_proj": "MXFP8"})
    assert diff_manifests(fused, members, tiny_source) == []
    assert diff_manifests(fused, runtime, tiny_source) == []
    assert len(diff_manifests(fused, members)) == 3
    unknown = manifest({f"{L}0.mlp.gate_up_proj": "MXFP8", "nowhere": "FP8"})
    assert diff_manifests(fused, unknown, tiny_source) == [Difference("nowhere", None, "FP8")]


def test_a_manifest_and_a_checkpoint(tiny_source, nvfp4_source):
    chosen = manifest({f"{L}0.mlp.gate_up_proj": "MXFP8"})
    assert diff_checkpoint(chosen, tiny_source) == [
        Difference(f"{L}0.mlp.gate_proj", "MXFP8", "BF16, unquantized"),
        Difference(f"{L}0.mlp.up_proj", "MXFP8", "BF16, unquantized"),
    ]
    found = diff_checkpoint(manifest({f"{L}3.mlp.experts": "NVFP4"}), nvfp4_source)
    assert Difference(f"{L}4.mlp.experts", None, "NVFP4") in found
    assert not any(item.name == f"{L}3.mlp.experts" for item in found)
    assert len(found) == 41 + 9
