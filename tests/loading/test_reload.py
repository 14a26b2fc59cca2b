"""Loading again into live weights: the bytes of a fresh load in the same places, or nothing changes."""

import pytest
import torch

from intarsia.checkpoint import Reader, open_checkpoint
from intarsia.checkpoint.errors import TruncatedError
from intarsia.formats import Stored
from intarsia.kernels.experts.packed import pack
from intarsia.loading.errors import ConvertError, LoadError
from intarsia.loading.reload import reload_weights
from intarsia.loading.weights import load_weights
from intarsia.selection.recipes import apply_recipe
from intarsia.selection.source import source_of

L = "model.language_model.layers."


def tensors_of(weights):
    return {
        f"{name}/{suffix}": tensor
        for name, weight in weights.items()
        for suffix, tensor in (weight.items() if isinstance(weight, Stored) else [("", weight)])
    }


def content(weights):
    return {name: t.reshape(-1).view(torch.uint8).clone() for name, t in tensors_of(weights).items()}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(tensor, b[name]) for name, tensor in a.items())


def change(tensors):
    tensors[f"{L}0.self_attn.q_proj.weight"].mul_(2)
    tensors[f"{L}1.mlp.experts.3.up_proj.weight"].mul_(3)
    tensors["model.language_model.norm.weight"].add_(1)


@pytest.fixture
def live(small):
    source = small()
    manifest = apply_recipe("fp4-local", source_of(source))
    return source, manifest, load_weights(source, manifest=manifest)


def test_new_weights_take_the_places_of_the_old(live, small):
    _, manifest, weights = live
    newer = small("newer", change=change)
    places = {name: tensor.data_ptr() for name, tensor in tensors_of(weights).items()}
    changed = reload_weights(weights, newer, manifest=manifest)
    assert set(changed) == {"norm", "layers.0.self_attn.q_proj", "layers.1.mlp.experts.gate_up"}
    assert same(content(weights), content(load_weights(newer, manifest=manifest)))
    assert {name: tensor.data_ptr() for name, tensor in tensors_of(weights).items()} == places


def test_the_same_weights_again_change_nothing(live):
    source, manifest, weights = live
    before = content(weights)
    assert reload_weights(weights, source, manifest=manifest) == ()
    assert same(content(weights), before)


def test_a_failure_leaves_the_old_weights(live, small, monkeypatch):
    _, manifest, weights = live
    before = content(weights)

    def spoil(tensors):
        change(tensors)
        tensors[f"{L}2.mlp.experts.7.down_proj.weight"][0, 0] = float("nan")

    with pytest.raises(ConvertError, match="nan"):
        reload_weights(weights, small("spoiled", change=spoil), manifest=manifest)
    assert same(content(weights), before)
    newer, calls, original = small("newer", change=change), [], Reader.read_into

    def read_into(self, *arguments):
        calls.append(1)
        if len(calls) == 100:
            raise TruncatedError("shard", found="the end")
        return original(self, *arguments)

    monkeypatch.setattr(Reader, "read_into", read_into)
    with pytest.raises(TruncatedError):
        reload_weights(weights, newer, manifest=manifest)
    assert same(content(weights), before)


def test_weights_of_another_form_are_refused_before_reading(live, monkeypatch):
    source, _, weights = live
    monkeypatch.setattr(Reader, "read_into", lambda *_: pytest.fail("read a weight"))
    with pytest.raises(LoadError) as refusal:
        reload_weights(weights, source)
    rules = {violation.rule for violation in refusal.value.violations}
    assert rules == {"other-form"}
    few = {name: weight for name, weight in weights.items() if name != "norm"} | {"extra": weights["norm"]}
    with pytest.raises(LoadError) as refusal:
        reload_weights(few, source)
    assert {v.rule for v in refusal.value.violations} == {"other-form", "missing-weight", "new-weight"}


def test_experts_that_a_network_has_laid_out_in_tiles_are_refused():
    source = open_checkpoint("demo")
    manifest = apply_recipe("nvfp4-experts", source_of(source))
    weights = load_weights(source, manifest=manifest)
    name = next(n for n, w in weights.items() if n.endswith("experts.down") and "NVFP4" in w.format)
    pack(weights[name], gated=False)
    before = content(weights)
    with pytest.raises(LoadError, match="laid out in tiles") as refusal:
        reload_weights(weights, source, manifest=manifest)
    assert name in str(refusal.value)
    assert same(content(weights), before)
