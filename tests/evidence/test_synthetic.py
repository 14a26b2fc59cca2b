"""Synthetic checkpoints are whole, valid in every format, and usable."""

from contextlib import contextmanager

import pytest
import torch

import intarsia
from intarsia.core.errors import UsageError
from intarsia.evidence.synthetic import geometry, network, synthesize, weights
from intarsia.evidence.synthetic.values import FORMATS, random_stored
from intarsia.formats import get


def small_geometry():
    config = geometry("glm-5.3-flash", layers=4, experts=8, vocabulary=256)
    sizes = {"hidden_size": 128, "q_lora_rank": 64, "kv_lora_rank": 64, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 4, "intermediate_size": 256, "moe_intermediate_size": 128}
    sizes |= {"linear_num_heads": 4, "linear_head_dim": 32}
    config["text_config"].update(sizes)
    config["text_config"]["linear_attn_config"].update(head_dim=32, num_heads=4)
    return config


@pytest.mark.parametrize("recipe", ["fp4-local", "spark", "nvfp4-experts", "bf16"])
def test_it_is_clean_and_its_logits_are_finite(tmp_path, recipe):
    checkpoint = synthesize(tmp_path / "made", small_geometry(), recipe=recipe)
    assert intarsia.audit(checkpoint, values=True).violations == ()
    with torch.no_grad():
        logits = intarsia.load(checkpoint).logits(list(range(20)))
    assert logits.isfinite().all()
    assert 0.05 < logits.std() < 50


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    first, second, other = (
        synthesize(tmp_path / str(i), small_geometry(), recipe="fp4-local", seed=seed)
        for i, seed in enumerate((1, 1, 2))
    )
    shards = [(c.path / c.shards[0].name).read_bytes() for c in (first, second, other)]
    assert shards[0] == shards[1] != shards[2]


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_matrix_decodes_to_the_size_that_keeps_activations(name):
    stored = random_stored(name, 256, 512, torch.Generator().manual_seed(3))
    values = get(name).decode(stored, torch.float32)
    assert 0.5 < values.std().item() * 512**0.5 < 2


def test_a_geometry_cannot_grow():
    with pytest.raises(UsageError, match="layers: found 46"):
        geometry("glm-5.3-flash", layers=46)
    with pytest.raises(UsageError, match="unheard-of"):
        geometry("unheard-of")


@pytest.mark.parametrize("recipe", ["fp4-local", "spark", "bf16"])
def test_weights_made_in_memory_are_those_of_a_loaded_checkpoint_but_for_their_numbers(tmp_path, recipe):
    config = small_geometry()
    loaded = intarsia.load_weights(synthesize(tmp_path / "made", config, recipe=recipe))
    made = weights(config, recipe=recipe, device="cpu")
    assert {name: form(weight) for name, weight in made.items()} == {
        name: form(weight) for name, weight in loaded.items()
    }
    with torch.no_grad():
        model = network(config, recipe=recipe, dtype=torch.float32, device="cpu")
        assert 0.05 < model.logits(list(range(20))).std() < 50


def form(weight):
    if isinstance(weight, torch.Tensor):
        return weight.shape, weight.dtype
    tensors = {suffix: (tensor.shape, tensor.dtype) for suffix, tensor in weight.items()}
    return weight.format, weight.shape, weight.row_parts, tensors


def test_progress_is_told_of_all_that_is_written(tmp_path):
    told = []

    class Told:
        @contextmanager
        def phase(self, name, total, unit="bytes"):
            told.append([total, 0])
            yield self

        def advance(self, count):
            told[-1][1] += count

    for recipe in ("bf16", "spark"):
        made = synthesize(tmp_path / recipe, small_geometry(), recipe=recipe, progress=Told())
        total, written = told[-1]
        assert written == sum(tensor.nbytes for tensor in made.tensors.values())
        # what compressing scales makes of small matrices is not known before
        assert abs(total - written) <= (0 if recipe == "bf16" else total / 50)
