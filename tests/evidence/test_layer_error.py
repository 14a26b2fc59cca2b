"""Errors of stored weights: what a format explains, what it does not, and what is equal."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from intarsia import formats
from intarsia.evidence.forms import open_form
from intarsia.evidence.quality.layer_error import LayerErrors, grouped, layer_and_kind, layer_errors
from tests.synthetic import write_source

VICTIM = "model.language_model.layers.5.mlp.experts.7.down_proj"


def damaged(folder, out, change):
    """A copy of a checkpoint with one tensor changed."""
    import shutil

    shutil.copytree(folder, out)
    for file in sorted(out.rglob("*.safetensors")):
        tensors = load_file(file)
        for name in list(tensors):
            tensors[name] = change(name, tensors[name])
        save_file(tensors, file, metadata={"format": "pt"})
    return open_form(out)


@pytest.fixture(scope="module")
def clean(demo, converted) -> LayerErrors:
    return layer_errors(demo, open_form(converted("fp4-local", "none")))


def test_a_clean_conversion_has_no_suspects(clean):
    assert len(clean.changed) > 200
    assert clean.suspects == ()
    errors = [row.error for row in clean.changed]
    assert errors == sorted(errors, reverse=True)
    by_format = {row.format: row.error for row in clean.changed}
    # Gaussian weights: FP4 in blocks of 16 about 0.095, E4M3 about 0.026 (uniform in steps of 2^-3)
    assert by_format["W4A16_NVFP4"] == pytest.approx(0.095, rel=0.05)
    assert by_format["MXFP8"] == pytest.approx(0.026, rel=0.1)


def test_a_shifted_scale_row_is_found_and_ranked_first(demo, converted, tmp_path, clean):
    def shift(name, tensor):
        if name == f"{VICTIM}.weight_scale":
            tensor[40] = tensor[40].view(torch.uint8).roll(1).view(tensor.dtype)
        return tensor

    found = layer_errors(demo, damaged(converted("fp4-local", "none"), tmp_path / "bad", shift))
    first = found.changed[0]
    assert (first.name, first.worst_row, first.suspect) == (VICTIM, 40, True)
    assert found.suspects == (first,)
    assert len(found.changed) == len(clean.changed)
    # The error of the whole matrix hardly shows it: that is why rows are held against encoding again.
    rank = sorted(found.changed, key=lambda row: -row.error).index(first)
    assert rank > 0 or first.error < 1.2 * clean.changed[0].error


def test_scales_moved_to_the_next_row_are_found(demo, converted, tmp_path):
    def shift(name, tensor):
        return (
            tensor.view(torch.uint8).roll(1, 0).view(tensor.dtype)
            if name == f"{VICTIM}.weight_scale"
            else tensor
        )

    found = layer_errors(demo, damaged(converted("fp4-local", "none"), tmp_path / "bad", shift))
    assert [row.name for row in found.suspects] == [VICTIM]


def test_a_changed_plain_tensor_is_listed_with_its_error(demo, converted, tmp_path):
    name = "model.language_model.layers.2.post_attention_layernorm.weight"

    def scale(found, tensor):
        return tensor * 1.5 if found == name else tensor

    found = layer_errors(demo, damaged(demo.checkpoint.path, tmp_path / "bad", scale))
    assert [row.name for row in found.changed] == [name]
    assert found.changed[0].error == pytest.approx(0.5)


def test_errors_are_frobenius_norms(demo):
    candidate = open_form("demo", "spark")
    found = {row.name: row for row in layer_errors(demo, candidate).changed}
    name = "model.language_model.layers.0.self_attn.q_proj"
    with demo.checkpoint.reader() as reader:
        weight = reader.read(f"{name}.weight").double()
    mxfp8 = formats.get("MXFP8")
    difference = mxfp8.decode(mxfp8.encode(weight.bfloat16())).double() - weight
    assert found[name].error == pytest.approx(float(difference.norm() / weight.norm()), rel=1e-12)
    assert found[name].largest == float(difference.abs().max())
    assert found[name].row_ratio == 1


def test_what_only_one_side_has_is_named(tmp_path):
    whole = write_source(tmp_path / "whole")
    part = write_source(
        tmp_path / "part",
        change=lambda tensors: [tensors.pop(name) for name in list(tensors) if "layers.8." in name],
    )
    found = layer_errors(open_form(whole.path), open_form(part.path))
    assert found.changed == ()
    assert found.only_in_candidate == ()
    assert found.only_in_base
    assert all("layers.8." in name for name in found.only_in_base)


def test_groups_put_a_layers_experts_together(clean):
    groups = grouped(clean.changed)
    keys = [(group.layer, group.kind) for group in groups]
    assert len(keys) == len(set(keys))
    experts = next(group for group in groups if (group.layer, group.kind) == (3, "mlp.experts.up_proj"))
    assert experts.tensors == 12
    members = [row for row in clean.changed if layer_and_kind(row.name) == (3, "mlp.experts.up_proj")]
    assert min(row.error for row in members) <= experts.error <= experts.worst
    assert layer_and_kind("lm_head") == (-1, "lm_head")
