"""A converted checkpoint holds exactly what the selection says, byte for byte, or does not appear."""

import hashlib
import json
from collections import Counter

import pytest
import torch

from intarsia import formats
from intarsia.checkpoint import modules, open_checkpoint, resolve
from intarsia.checkpoint.errors import TargetExistsError
from intarsia.formats import csf as csf_codecs
from intarsia.loading.errors import ConvertError
from intarsia.loading.export import convert, select, with_csf
from intarsia.loading.outputs import outputs
from intarsia.selection.errors import SelectionError
from intarsia.selection.manifest import Manifest, Section
from intarsia.selection.recipes import apply_recipe
from intarsia.selection.source import source_of
from tests.synthetic import COMPANIONS

L = "model.language_model.layers."
CODECS = {"block": "csf_32x2_v1", "slab": "nvfp4_slab", "none": None}


def raw(tensor):
    return tensor.contiguous().view(-1).view(torch.uint8)


def file_hashes(folder):
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_metadata_and_tensors_agree(converted):
    assert resolve(converted).violations == ()
    assert converted.problems == ()


def test_every_module_has_the_format_of_the_recipe(converted, csf):
    counts = Counter(module.format for module in modules(converted).values())
    # 6 KDA x 4, 9 dense, the head, 4 + 3 of the draft; 2 MLA x 4 and 5 shared experts x 3
    assert counts["MXFP8"] == 24 + 9 + 1 + 7
    assert counts["FP8_PB_WO"] == 8 + 15
    assert counts["W4A16_NVFP4"] == 6 * 8 * 3
    codecs = Counter(module.codec for module in modules(converted).values() if module.format == "W4A16_NVFP4")
    assert codecs[CODECS[csf]] == 5 * 24 + (24 if csf == "none" else 0)
    assert {m.codec for name, m in modules(converted).items() if name.startswith(L + "8.")} == {None}


def test_everything_else_is_copied_byte_for_byte(source, converted):
    changed = {name for name, module in modules(converted).items() if module.format is not None}
    with source.reader() as before, converted.reader() as after:
        kept = [name for name in source.tensors if name.removesuffix(".weight") not in changed]
        assert len(kept) == len(source.tensors) - len(changed)
        for name in kept:
            assert source.tensors[name].dtype == converted.tensors[name].dtype
            assert torch.equal(raw(before.read(name)), raw(after.read(name))), name


def test_every_matrix_is_what_the_format_encodes_and_encodes_back(source, converted):
    with source.reader() as before, converted.reader() as after:
        for name, module in modules(converted).items():
            if module.format is None:
                continue
            weight = before.read(f"{name}.weight")
            pair = {"gate_proj": "up_proj", "up_proj": "gate_proj"}.get(name.rpartition(".")[2])
            amax = None
            if pair and module.format == "W4A16_NVFP4":
                other = before.read(f"{name.rpartition('.')[0]}.{pair}.weight")
                amax = torch.maximum(weight.abs().amax(), other.abs().amax()).float()
            expected = dict(formats.get(module.format).encode(weight, amax=amax).tensors)
            stored = {suffix: after.read_entry(entry) for suffix, entry in module.tensors.items()}
            if module.codec is not None:
                parts = {s.partition(".")[2]: stored.pop(s) for s in list(stored) if "." in s}
                rows, columns = expected["weight_scale"].shape
                decoded = csf_codecs.decode(parts, rows, columns, module.codec)
                assert csf_codecs.is_canonical(parts, rows, columns, module.codec)
                stored["weight_scale"] = decoded.view(torch.float8_e4m3fn)
            assert stored.keys() == expected.keys()
            for suffix, tensor in expected.items():
                assert stored[suffix].shape == tensor.shape
                assert torch.equal(raw(stored[suffix]), raw(tensor)), f"{name}.{suffix}"


def test_gate_and_up_share_one_global_scale(converted):
    with converted.reader() as reader:
        for expert in range(8):
            gate, up = (
                reader.read(f"{L}5.mlp.experts.{expert}.{half}_proj.weight_scale_2")
                for half in ("gate", "up")
            )
            assert torch.equal(gate, up)


def test_both_carriers_say_the_same(converted, csf):
    nested = json.loads((converted.path / "hf_quant_config.json").read_text())["quantization"]
    flat = converted.config["quantization_config"]
    assert nested["quantized_layers"] == flat["quantized_layers"]
    assert nested["quant_algo"] == flat["quant_algo"] == "MIXED_PRECISION"
    experts = flat["quantized_layers"][L + "3.mlp.experts"]
    encoding = {"block": "csf_32x2_v1", "slab": "csf", "none": None}[csf]
    assert experts == {"quant_algo": "W4A16_NVFP4", "group_size": 16} | (
        {"weight_scale_encoding": encoding} if encoding else {}
    )
    assert flat["quantized_layers"]["lm_head"] == {"quant_algo": "MXFP8", "group_size": 32}
    targets = [name for group in flat["config_groups"].values() for name in group["targets"]]
    assert sorted(targets) == sorted(flat["quantized_layers"])


def test_the_folder_is_complete(source, converted):
    assert {name: (converted.path / name).read_bytes() for name in COMPANIONS} == COMPANIONS
    assert all(shard.name.startswith("tensors/") for shard in converted.shards)
    index = json.loads((converted.path / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == converted.tensors.keys()
    kept = {key: value for key, value in converted.config.items() if key != "quantization_config"}
    assert kept == source.config


def test_the_source_is_only_read(small, tmp_path):
    source = small()
    before = file_hashes(source.path)
    convert(source.path, tmp_path / "out", recipe="spark")
    assert file_hashes(source.path) == before


def test_code_and_pickles_are_not_copied(small, tmp_path):
    source = small()
    for name in ("modeling.py", "pytorch_model.bin", ".hidden.json"):
        (source.path / name).write_bytes(b"x")
    out = convert(source.path, tmp_path / "out", recipe="spark").path
    names = {path.name for path in out.iterdir()}
    assert names == {
        "config.json",
        "hf_quant_config.json",
        "model.safetensors.index.json",
        "conversion.json",
        "tensors",
        *COMPANIONS,
    }


def test_the_bf16_recipe_copies(small, tmp_path):
    source = small()
    out = convert(source.path, tmp_path / "out", recipe="bf16")
    assert out.config == source.config
    assert not (out.path / "hf_quant_config.json").exists()
    with source.reader() as before, out.reader() as after:
        assert all(torch.equal(raw(before.read(name)), raw(after.read(name))) for name in source.tensors)


def test_fused_matrices_with_a_global_scale_share_it(small, tmp_path):
    source = small()
    group = [f"{L}0.self_attn.{name}_proj" for name in ("q", "k", "v", "b", "f_a")]
    manifest = Manifest(
        schema="intarsia.manifest/1", main=Section(targets=dict.fromkeys(group, "W4A16_NVFP4"))
    )
    out = convert(source.path, tmp_path / "out", manifest=manifest)
    with out.reader() as reader:
        scales = {float(reader.read(f"{name}.weight_scale_2")) for name in group}
    assert len(scales) == 1


def test_an_expert_that_is_all_zero_gets_the_documented_scale(small, tmp_path):
    def zero(tensors):
        for half in ("gate", "up", "down"):
            tensors[f"{L}1.mlp.experts.2.{half}_proj.weight"].zero_()

    out = convert(small(change=zero).path, tmp_path / "out", recipe="fp4-local")
    with out.reader() as reader:
        for half in ("gate", "up", "down"):
            assert reader.read(f"{L}1.mlp.experts.2.{half}_proj.weight_scale_2") == 1
            assert not reader.read(f"{L}1.mlp.experts.2.{half}_proj.weight").any()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_is_named_and_nothing_is_left(small, tmp_path, value):
    name = f"{L}1.mlp.experts.5.up_proj"

    def spoil(tensors):
        tensors[f"{name}.weight"][3, 7] = value

    source = small(change=spoil)
    with pytest.raises(ConvertError, match="row 3, column 7") as refusal:
        convert(source.path, tmp_path / "out", recipe="fp4-local")
    assert refusal.value.where == name
    assert [path.name for path in tmp_path.iterdir()] == ["small"]


def test_refusals_before_anything_is_written(small, tmp_path):
    source = small()
    (tmp_path / "there").mkdir()
    with pytest.raises(TargetExistsError):
        convert(source.path, tmp_path / "there", recipe="spark")
    with pytest.raises(ConvertError, match="inside the source"):
        convert(source.path, source.path / "out", recipe="spark")
    with pytest.raises(ConvertError, match="neither"):
        convert(source.path, tmp_path / "out")
    wrong = Manifest(schema="intarsia.manifest/1", main=Section(targets={"model.nothing": "MXFP8"}))
    with pytest.raises(SelectionError, match="unresolved"):
        convert(source.path, tmp_path / "out", manifest=wrong)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small", "there"]
    assert open_checkpoint(source.path).tensors == source.tensors


def test_the_estimated_room_for_exceptions_is_enough_for_normal_weights(source, converted, csf):
    manifest = with_csf(apply_recipe("fp4-local", source_of(source)), csf)
    selection = select(source, recipe=None, manifest=manifest)
    expected = list(outputs(source, {module.name: module for module in modules(source).values()}, selection))
    written = sum(entry.nbytes for entry in converted.tensors.values())
    fixed = sum(item.nbytes for item in expected)
    assert (written > fixed) == (csf != "none")
    assert written <= fixed + sum(item.exceptions for item in expected)
