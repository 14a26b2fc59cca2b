"""On a GPU: the bytes of the CPU, whatever is held, read twice or cut, and the element that is not finite."""

import pytest
import torch

from intarsia import formats
from intarsia.checkpoint import open_checkpoint
from intarsia.formats.errors import CsfError
from intarsia.loading.errors import ConvertError
from intarsia.loading.export import convert
from intarsia.loading.weights import load_weights
from intarsia.planning import working
from intarsia.selection.manifest import Manifest, Section
from intarsia.selection.recipes import apply_recipe
from intarsia.selection.source import source_of
from tests.loading.test_streaming import L, tensors_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("recipe", ["spark", "fp4-local"])
@pytest.mark.parametrize("hold", [0, 1 << 30])
@pytest.mark.parametrize("elements", [1 << 12, 1 << 22])
def test_a_gpu_encodes_to_the_bytes_of_the_cpu(source, monkeypatch, recipe, hold, elements):
    manifest = apply_recipe(recipe, source_of(source))
    expected = tensors_of(load_weights(source, manifest=manifest))
    monkeypatch.setattr(working, "HOLD_BYTES", hold)
    monkeypatch.setattr(working, "_DEVICE_ELEMENTS", elements)
    found = tensors_of(load_weights(source, manifest=manifest, device="cuda"))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name].cpu().view(-1).view(torch.uint8), tensor.view(-1).view(torch.uint8)), (
            name
        )


def test_stored_weights_arrive_as_they_arrive_on_the_cpu(converted):
    expected = tensors_of(load_weights(converted))
    found = tensors_of(load_weights(converted, device="cuda"))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name].cpu().view(-1).view(torch.uint8), tensor.view(-1).view(torch.uint8)), (
            name
        )


def test_compressed_scales_that_break_a_rule_are_named(source, tmp_path):
    out = tmp_path / "broken"
    checkpoint = convert(source.path, out, recipe="fp4-local", csf="slab")
    entry = next(entry for name, entry in checkpoint.tensors.items() if name.endswith("csf_fixed"))
    with (out / entry.shard).open("r+b") as file:
        file.seek(entry.begin)
        file.write(b"\xff" * 16)  # bases, of which the largest that can be is 240
    with pytest.raises(CsfError, match="nvfp4_csf_fixed"):
        load_weights(open_checkpoint(out), device="cuda")


@pytest.mark.parametrize("value", ["inf", "nan"])
@pytest.mark.parametrize("module", ["1.mlp.experts.5.up_proj", "0.self_attn.o_proj", "1.self_attn.kv_b_proj"])
def test_the_element_that_is_not_finite_is_named(small, module, value):
    def spoil(tensors):
        tensors[f"{L}{module}.weight"][37, 11] = float(value)

    source = small(change=spoil)
    targets = {f"{L}0.self_attn.o_proj": "MXFP8", f"{L}1.mlp.experts": "W4A16_NVFP4"}
    manifest = Manifest(
        schema="intarsia.manifest/1", main=Section(targets=targets | {f"{L}1.self_attn.kv_b_proj": "FP8"})
    )
    with pytest.raises(ConvertError, match=f"{value} at row 37, column 11") as refusal:
        load_weights(source, manifest=manifest, device="cuda")
    assert refusal.value.where == f"{L}{module}"


@pytest.mark.parametrize("format_name", sorted(working.TEMPORARY))
def test_an_encoder_allocates_at_most_what_is_planned(format_name):
    weight = torch.randn(4096, 2048, device="cuda").bfloat16()
    kind = formats.get(format_name)
    kind.encode(weight)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    kind.encode(weight)
    taken = torch.cuda.max_memory_allocated() - before
    assert taken <= working.TEMPORARY[format_name] * weight.numel()
