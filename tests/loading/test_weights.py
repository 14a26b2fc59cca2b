"""Weights arrive as stored, stacked as the network wants them, or every reason why not is given."""

import pytest
import torch

from intarsia import formats
from intarsia.checkpoint import modules
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.families.glm5_next.runtime import runtime_modules
from intarsia.formats import Stored
from intarsia.loading.arrange import arrange
from intarsia.loading.errors import LoadError
from intarsia.loading.export import convert
from intarsia.loading.weights import load_weights
from tests.synthetic import random_tensors, tiny_config, write_source

L = "model.language_model.layers."


def raw(tensor):
    return tensor.contiguous().view(-1).view(torch.uint8)


def violations(checkpoint):
    with pytest.raises(LoadError) as refusal:
        arrange(checkpoint)
    return {(violation.rule, violation.where) for violation in refusal.value.violations}


def test_an_unquantized_checkpoint_is_stacked_as_the_table_says(source):
    weights = load_weights(source)
    config = Glm5NextConfig.from_checkpoint_config(source.config)
    with source.reader() as reader:
        for module in runtime_modules(config):
            names = [name + ".weight" if module.matrix else name for name in module.sources]
            expected = torch.cat([reader.read(name).flatten() for name in names]).view(module.shape)
            weight = weights.pop(module.name)
            if module.matrix:
                assert weight.format == "BF16"
                assert weight.shape == module.shape
                weight = weight["weight"]
            assert weight.dtype == expected.dtype
            assert torch.equal(weight, expected), module.name
    assert weights == {}


def test_a_mixed_checkpoint_decodes_to_the_values_of_its_parts(converted):
    weights = load_weights(converted)
    config = Glm5NextConfig.from_checkpoint_config(converted.config)
    held = modules(converted)
    with converted.reader() as reader:
        for module in runtime_modules(config):
            weight = weights[module.name]
            if not module.matrix:
                continue
            assert isinstance(weight, Stored)
            kind = held[module.sources[0]].format or "BF16"
            assert weight.format == kind
            assert weight.shape == module.shape
            if held[module.sources[0]].codec is not None:
                continue  # compared with the plain conversion below
            parts = [
                formats.get(kind).decode({s: reader.read_entry(e) for s, e in held[name].tensors.items()})
                for name in module.sources
            ]
            assert torch.equal(formats.get(kind).decode(weight), torch.cat(parts).view(module.shape)), (
                module.name
            )


def test_experts_keep_a_global_scale_a_matrix(converted):
    weights = load_weights(converted)
    gate_up, down = (weights[f"layers.4.mlp.experts.{name}"] for name in ("gate_up", "down"))
    assert {suffix: tuple(tensor.shape) for suffix, tensor in gate_up.items()} == {
        "weight": (8, 256, 64),
        "weight_scale": (8, 256, 8),
        "weight_scale_2": (8, 2),
    }
    assert tuple(down["weight_scale_2"].shape) == (8,)


def test_every_codec_loads_to_the_bytes_of_plain_scales(source, converted, tmp_path):
    plain = load_weights(convert(source.path, tmp_path / "plain", recipe="fp4-local", csf="none"))
    loaded = load_weights(converted)
    assert loaded.keys() == plain.keys()
    for name, weight in plain.items():
        tensors = weight if isinstance(weight, Stored) else {"weight": weight}
        others = loaded[name] if isinstance(weight, Stored) else {"weight": loaded[name]}
        for suffix, tensor in tensors.items():
            assert torch.equal(raw(tensor), raw(others[suffix])), f"{name}.{suffix}"


def test_f32_stays_f32(source):
    weights = load_weights(source)
    for name in (
        "norm",
        "layers.0.post_attention_layernorm",
        "layers.0.hc_attn_base",
        "mtp.mlp.gate.e_score_correction_bias",
    ):
        assert weights[name].dtype == torch.float32
    assert weights["layers.0.input_layernorm"].dtype == torch.bfloat16


def test_the_arrangement_counts_what_is_allocated_and_read(converted, csf):
    plan = arrange(converted)
    loaded = load_weights(plan)
    assert plan.nbytes == sum(weight.nbytes for weight in loaded.values())
    entries = {piece.entries for weight in plan.weights for piece in weight.pieces}
    assert plan.stored_bytes == sum(entry.nbytes for group in entries for entry in group)
    assert plan.stored_bytes == sum(entry.nbytes for entry in converted.tensors.values())
    assert (plan.stored_bytes < plan.nbytes) == (csf != "none")


def test_progress_reports_every_byte(source):
    class Count:
        done = 0

        def phase(self, name, total):
            self.total = total
            return self

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def advance(self, count):
            self.done += count

    count = Count()
    load_weights(source, progress=count)
    assert count.done == count.total == sum(entry.nbytes for entry in source.tensors.values())


def test_loaded_weights_own_their_memory(small):
    weights = load_weights(small())
    storages = [
        t.untyped_storage() for w in weights.values() for t in (w.values() if isinstance(w, Stored) else [w])
    ]
    assert len({storage.data_ptr() for storage in storages}) == len(storages)


def test_missing_left_over_and_misshapen_tensors_are_all_named(small):
    def spoil(tensors):
        del tensors[f"{L}0.self_attn.k_conv1d.weight"]
        del tensors[f"{L}1.mlp.experts.3.down_proj.weight"]
        tensors[f"{L}1.self_attn.rotary.weight"] = torch.zeros(4)
        tensors[f"{L}0.self_attn.o_proj.bias"] = torch.zeros(4)
        tensors["lm_head.weight"] = torch.zeros(8, 128)

    assert violations(small(change=spoil)) == {
        ("missing-tensor", f"{L}0.self_attn.k_conv1d.weight"),
        ("expert-incomplete", f"{L}1.mlp.experts.3.down_proj"),
        ("missing-tensor", f"{L}1.mlp.experts.3.down_proj.weight"),
        ("unused-tensor", f"{L}1.self_attn.rotary.weight"),
        ("unused-tensor", f"{L}0.self_attn.o_proj.bias"),
        ("tensor-shape", "lm_head"),
    }


def test_a_stack_of_two_kinds_is_refused(small):
    def spoil(tensors):
        tensors[f"{L}0.mlp.up_proj.weight"] = tensors[f"{L}0.mlp.up_proj.weight"].float()
        tensors[f"{L}0.self_attn.v_conv1d.weight"] = tensors[f"{L}0.self_attn.v_conv1d.weight"].float()

    assert violations(small(change=spoil)) == {
        ("mixed-stack", "layers.0.mlp.gate_up"),
        ("mixed-stack", "layers.0.self_attn.conv1d"),
    }


def test_integers_where_numbers_are_expected(small):
    def spoil(tensors):
        tensors["model.language_model.norm.weight"] = torch.zeros(128, dtype=torch.int32)

    where = "model.language_model.norm.weight"
    assert violations(small(change=spoil)) == {("scale-lost", where), ("plain-dtype", where)}


def test_the_draft_may_be_absent_but_not_partly_present(small):
    def without(tensors):
        for name in [name for name in tensors if name.startswith(f"{L}2.")]:
            del tensors[name]

    def partly(tensors):
        del tensors[f"{L}2.eh_proj.weight"]

    plan = arrange(small(change=without))
    assert not plan.mtp
    assert not any(weight.module.name.startswith("mtp.") for weight in plan.weights)
    assert violations(small("other", change=partly)) == {("missing-tensor", f"{L}2.eh_proj.weight")}


def test_the_vision_tower_is_named_when_unused_and_refused_when_partly_present(tmp_path):
    whole = write_source(tmp_path / "whole", vision=True)
    assert arrange(whole).unused == ("vision tower (25 tensors)",)
    assert arrange(write_source(tmp_path / "none")).unused == ()

    def partly(tensors):
        del tensors["model.visual.post_layernorm.weight"]

    partial = write_source(tmp_path / "partial", vision=True, change=partly)
    assert violations(partial) == {("missing-tensor", "model.visual.post_layernorm.weight")}


def test_stacked_parts_that_end_inside_blocks_keep_their_own(small, tmp_path):
    out = convert(small(moe_intermediate_size=64).path, tmp_path / "out", recipe="fp4-local")
    weight = load_weights(out)["layers.1.mlp.shared_experts.gate_up"]
    assert (weight.format, weight.shape, weight.row_parts) == ("FP8_PB_WO", (128, 128), 2)
    held = modules(out)
    with out.reader() as reader:
        parts = [
            formats.get("FP8_PB_WO").decode({s: reader.read_entry(e) for s, e in held[name].tensors.items()})
            for name in (f"{L}1.mlp.shared_experts.gate_proj", f"{L}1.mlp.shared_experts.up_proj")
        ]
    assert torch.equal(formats.get(weight.format).decode(weight), torch.cat(parts))


def test_a_float32_checkpoint_loads_as_float32(tmp_path):
    def widen(tensors):
        for name in tensors:
            tensors[name] = tensors[name].float()

    weights = load_weights(write_source(tmp_path / "f32", change=widen))
    assert weights["layers.3.mlp.experts.gate_up"].format == "F32"
    assert torch.equal(
        weights["embed_tokens"],
        random_tensors(tiny_config())["model.language_model.embed_tokens.weight"].float(),
    )
