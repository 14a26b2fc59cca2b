"""Sources that are quantized already, and architectures without data about their network."""

import json

import pytest
import torch

from intarsia import formats
from intarsia.checkpoint import modules, open_checkpoint, resolve, write_checkpoint
from intarsia.families.groups import LLAMA_LIKE
from intarsia.formats import Stored
from intarsia.loading.export import convert
from intarsia.loading.weights import load_weights
from intarsia.planning.plan import plan
from intarsia.selection.errors import SelectionError
from intarsia.selection.manifest import Manifest, Section
from intarsia.selection.recipes import apply_recipe
from intarsia.selection.source import source_of

L = "model.language_model.layers."
A = "model.layers.0."


def raw(tensor):
    return tensor.contiguous().view(-1).view(torch.uint8)


def manifest(targets, **section):
    return Manifest(schema="intarsia.manifest/1", main=Section(targets=targets, **section))


def llama_tensors(experts=0):
    generator = torch.Generator().manual_seed(3)
    shapes = {f"{A}self_attn.{name}_proj.weight": (128, 128) for name in "qkvo"}
    parents = [f"{A}mlp."] + [f"{A}mlp.experts.{expert}." for expert in range(experts)]
    for parent in parents:
        shapes |= {f"{parent}{name}_proj.weight": (256, 128) for name in ("gate", "up")}
        shapes[f"{parent}down_proj.weight"] = (128, 256)
    shapes |= {f"{A}self_attn.q_proj.bias": (128,), f"{A}input_layernorm.weight": (128,)}
    shapes |= {"model.embed_tokens.weight": (64, 128), "lm_head.weight": (64, 128)}
    return {
        name: (torch.randn(shape, generator=generator) * 0.05).bfloat16() for name, shape in shapes.items()
    }


@pytest.fixture
def llama(tmp_path):
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 128}
    return write_checkpoint(tmp_path / "llama", llama_tensors().items(), config=config)


@pytest.fixture
def block_fp8(tmp_path):
    """DeepSeek's convention: quant_method fp8, `weight_scale_inv`, two-dimensional scales."""
    tensors = {}
    for name, tensor in llama_tensors().items():
        if not name.endswith("_proj.weight"):
            tensors[name] = tensor
            continue
        stored = formats.get("FP8_PB_WO").encode(tensor)
        tensors[name] = stored["weight"]
        tensors[f"{name}_scale_inv"] = stored["weight_scale"].reshape(
            -(-tensor.shape[0] // 128), -(-tensor.shape[1] // 128)
        )
    quantization = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }
    config = {"model_type": "llama", "hidden_size": 128, "quantization_config": quantization}
    return write_checkpoint(tmp_path / "block", tensors.items(), config=config)


def test_a_llama_like_source_converts_by_its_groups(llama, tmp_path):
    targets = {f"{A}self_attn.qkv_proj": "MXFP8", f"{A}mlp.gate_up_proj": "W4A16_NVFP4"}
    chosen = manifest(targets)
    weights = load_weights(llama, manifest=chosen)
    assert weights[f"{A}self_attn.k_proj"].format == "MXFP8"
    assert weights[f"{A}self_attn.q_proj.bias"].dtype == torch.bfloat16
    gate, up = (weights[f"{A}mlp.{name}_proj"] for name in ("gate", "up"))
    assert torch.equal(gate["weight_scale_2"], up["weight_scale_2"])
    assert weights[f"{A}mlp.down_proj"].format == "BF16"
    out = convert(llama.path, tmp_path / "out", manifest=chosen)
    assert resolve(out).violations == ()
    again = load_weights(out)
    assert again.keys() == weights.keys()
    for name, weight in weights.items():
        for suffix, tensor in weight.items() if isinstance(weight, Stored) else [("", weight)]:
            other = again[name][suffix] if isinstance(weight, Stored) else again[name]
            assert torch.equal(raw(tensor), raw(other)), name
    planned = plan(llama, chosen)
    assert planned.violations == ()
    assert planned.ranks[0].weights == sum(weight.nbytes for weight in weights.values())
    assert planned.modules == {"main": 2}


def test_part_of_a_llama_group_is_refused(llama):
    with pytest.raises(SelectionError, match="incomplete-group"):
        load_weights(llama, manifest=manifest({f"{A}self_attn.q_proj": "MXFP8"}))
    assert [rule.fused for rule in LLAMA_LIKE] == ["qkv_proj", "gate_up_proj"]


def test_more_than_one_rank_needs_rules_to_cut_by(llama):
    assert [violation.rule for violation in plan(llama, ranks=2).violations] == ["no-split-rules"]


def test_an_unknown_architecture_converts_by_exact_names(tmp_path):
    config = {"model_type": "something_else"}
    source = write_checkpoint(tmp_path / "other", llama_tensors(experts=2).items(), config=config)
    chosen = manifest({f"{A}self_attn.q_proj": "MXFP8", f"{A}mlp.experts": "W4A16_NVFP4"})
    weights = load_weights(source, manifest=chosen)
    assert weights[f"{A}self_attn.q_proj"].format == "MXFP8"
    for expert in range(2):
        gate, up = (weights[f"{A}mlp.experts.{expert}.{name}_proj"] for name in ("gate", "up"))
        assert torch.equal(gate["weight_scale_2"], up["weight_scale_2"])


def test_a_block_fp8_source_is_read_as_stored(block_fp8):
    weights = load_weights(block_fp8)
    assert weights[f"{A}mlp.down_proj"].format == "FP8_PB_WO"
    assert tuple(weights[f"{A}mlp.down_proj"]["weight_scale_inv"].shape) == (1, 2)


def test_a_block_fp8_source_is_decoded_only_where_asked(block_fp8, tmp_path):
    targets = {f"{A}mlp.gate_up_proj": "MXFP8"}
    with pytest.raises(SelectionError, match="already-quantized"):
        load_weights(block_fp8, manifest=manifest(targets))
    chosen = manifest(targets, requantize=[f"{A}mlp.gate_up_proj"])
    out = convert(block_fp8.path, tmp_path / "out", manifest=chosen)
    held = modules(out)
    assert held[f"{A}mlp.gate_proj"].format == "MXFP8"
    assert held[f"{A}mlp.down_proj"].format == "FP8_PB_WO"
    with block_fp8.reader() as before, out.reader() as after:
        for name in ("gate", "up"):
            stored = {
                s: before.read_entry(e) for s, e in modules(block_fp8)[f"{A}mlp.{name}_proj"].tensors.items()
            }
            expected = formats.get("MXFP8").encode(formats.get("FP8_PB_WO").decode(stored))
            for suffix, tensor in expected.items():
                assert torch.equal(raw(tensor), raw(after.read(f"{A}mlp.{name}_proj.{suffix}")))
        kept = f"{A}self_attn.o_proj.weight_scale_inv"
        assert torch.equal(before.read(kept), after.read(kept))
    planned = plan(block_fp8, chosen)
    assert planned.exported_bytes == sum(entry.nbytes for entry in out.tensors.values())


@pytest.mark.parametrize("csf", ["block", "slab", "none"])
def test_a_modelopt_source_is_decoded_only_where_asked(small, tmp_path, csf):
    first = convert(small().path, tmp_path / "first", recipe="fp4-local", csf=csf)
    experts = f"{L}1.mlp.experts"
    chosen = manifest({experts: "MXFP8"}, requantize=[experts])
    with pytest.raises(SelectionError, match="already-quantized"):
        load_weights(first, manifest=manifest({experts: "MXFP8"}))
    before, weights = load_weights(first), load_weights(first, manifest=chosen)
    assert weights["layers.1.mlp.experts.down"].format == "MXFP8"
    for part in ("gate_up", "down"):
        decoded = formats.get("W4A16_NVFP4").decode(before[f"layers.1.mlp.experts.{part}"])
        expected = formats.get("MXFP8").encode(decoded)
        for suffix, tensor in expected.items():
            assert torch.equal(raw(tensor), raw(weights[f"layers.1.mlp.experts.{part}"][suffix]))
    assert weights["lm_head"].format == "MXFP8"
    second = convert(first.path, tmp_path / "second", manifest=chosen)
    assert open_checkpoint(second.path).problems == ()
    assert resolve(second).violations == ()
    layers = json.loads((second.path / "config.json").read_text())["quantization_config"]["quantized_layers"]
    assert layers[experts] == {"quant_algo": "MXFP8", "group_size": 32}
    assert layers["lm_head"] == {"quant_algo": "MXFP8", "group_size": 32}


def test_a_recipe_leaves_what_is_quantized_alone(small, tmp_path):
    first = convert(small().path, tmp_path / "first", recipe="nvfp4-experts")
    spark = apply_recipe("spark", source_of(first))
    assert not any("experts" in name and "shared" not in name for name in spark.main.targets)
    second = convert(first.path, tmp_path / "second", manifest=spark)
    counts = {module.format for module in modules(second).values()}
    assert counts == {None, "MXFP8", "W4A16_NVFP4"}


def test_copying_a_quantized_source_keeps_its_metadata(block_fp8, tmp_path):
    out = convert(block_fp8.path, tmp_path / "out", recipe="bf16")
    assert out.config == block_fp8.config
    assert modules(out).keys() == modules(block_fp8).keys()
