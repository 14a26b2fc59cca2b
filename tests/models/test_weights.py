"""A network takes exactly its weights, and a state exactly what fits it."""

import pytest
import torch

from intarsia import formats
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.formats.stored import Stored
from intarsia.models.errors import ModelWeightsError, StateError
from intarsia.models.glm5_next.model import Glm5NextModel
from intarsia.models.glm5_next.state import StateSettings
from intarsia.models.glm5_next.weights import network_weights
from tests.models.cases import POOLS_OF_4, random_network
from tests.models.oracle import random_tensors, runtime_weights

CONFIG = Glm5NextConfig.from_checkpoint_config(POOLS_OF_4)


@pytest.fixture(scope="module")
def flat():
    return runtime_weights(CONFIG, random_tensors(CONFIG, 1))


def test_every_missing_and_every_unused_weight_is_named(flat):
    wrong = dict(flat)
    wrong["layers.3.self_attn.kv_b_projection"] = wrong.pop("layers.3.self_attn.kv_b_proj")
    del wrong["norm"]
    wrong["extra"] = flat["norm"]
    with pytest.raises(ModelWeightsError) as caught:
        network_weights(wrong, CONFIG)
    violations = {(v.rule, v.where) for v in caught.value.violations}
    assert violations == {
        ("missing-weight", "layers.3.self_attn.kv_b_proj"),
        ("missing-weight", "norm"),
        ("unused-weight", "layers.3.self_attn.kv_b_projection"),
        ("unused-weight", "extra"),
    }
    assert "nearest unused name is layers.3.self_attn.kv_b_projection" in str(caught.value)


def test_no_weights_at_all_are_a_list_of_missing_ones(flat):
    with pytest.raises(ModelWeightsError) as caught:
        network_weights({}, CONFIG)
    main = [name for name in flat if not name.startswith("mtp.")]
    assert sorted(v.where for v in caught.value.violations) == sorted(main)


def test_a_part_of_the_mtp_layer_is_an_error_and_none_of_it_is_not(flat):
    main = {name: weight for name, weight in flat.items() if not name.startswith("mtp.")}
    assert network_weights(main, CONFIG).mtp is None
    with pytest.raises(ModelWeightsError) as caught:
        network_weights(main | {"mtp.eh_proj": flat["mtp.eh_proj"]}, CONFIG)
    missing = {v.where for v in caught.value.violations if v.rule == "missing-weight"}
    assert missing == {name for name in flat if name.startswith("mtp.")} - {"mtp.eh_proj"}


def test_weights_are_held_as_they_came(flat):
    """No copy, no cast: what a loader owns is what the network computes with."""
    stored = formats.get("MXFP8").encode(flat["layers.0.self_attn.q_proj"])
    mixed = flat | {"layers.0.self_attn.q_proj": stored}
    held = network_weights(mixed, CONFIG)
    assert held.layers[0].block.attention.q is stored
    assert held.layers[1].block.mlp.gate_up is flat["layers.1.mlp.gate_up"]
    assert held.norm is flat["norm"]
    model = Glm5NextModel(CONFIG, mixed, dtype=torch.float32, device="cpu")
    assert torch.isfinite(model.logits([1, 2, 3])).all()


def test_plain_formats_wrap_norms_too(flat):
    """A norm may come as a stored weight of a plain format; its float32 values are used as they are."""
    wrapped = {name: Stored("F32", {"weight": weight}, tuple(weight.shape)) for name, weight in flat.items()}
    got = Glm5NextModel(CONFIG, wrapped, dtype=torch.float32, device="cpu").logits([5, 6, 7])
    plain = Glm5NextModel(CONFIG, flat, dtype=torch.float32, device="cpu").logits([5, 6, 7])
    assert torch.equal(got, plain)


@pytest.mark.parametrize("token", [-1, 128, 10**6])
def test_tokens_outside_the_vocabulary_are_refused(token):
    model = random_network(POOLS_OF_4)
    with pytest.raises(StateError, match="token at position 2: found") as caught:
        model.logits([1, 2, token])
    assert caught.value.expected == "an id from 0 to 127"


def test_a_page_must_hold_whole_pools():
    model = random_network(POOLS_OF_4)
    with pytest.raises(StateError, match="a multiple of the pool size 4"):
        model.new_state(StateSettings(streams=1, window=64, pages=8, page=10))


def test_a_state_holds_what_its_settings_say():
    model = random_network(POOLS_OF_4, dtype=torch.bfloat16)
    state = model.new_state(StateSettings(streams=3, window=100, pages=9, page=16, step_rows=4))
    assert state.latents.shape == (3, 10, 16, 32)
    assert state.pooled.shape == (3, 10, 4, 16)
    assert state.tail.shape == (3, 3, 3 + 4, 32)
    assert state.memory.shape == (6, 3, 4, 4, 16, 16)
    assert state.window.shape == (6, 3, 3 + 4, 3 * 64)
    assert state.page_table.shape == (3, 7)
    assert (state.page_table == state.null_page).all()
    assert state.null_page == 9
    assert {state.latents.dtype, state.pooled.dtype, state.tail.dtype, state.window.dtype} == {torch.bfloat16}
    assert state.memory.dtype == torch.float32
    sizes = (state.latents, state.pooled, state.tail, state.window)
    wide = (state.memory, state.current, state.page_table)
    assert state.nbytes == sum(2 * x.numel() for x in sizes) + sum(4 * x.numel() for x in wide)


def test_an_mtp_layer_that_is_not_there_cannot_run(flat):
    main = {name: weight for name, weight in flat.items() if not name.startswith("mtp.")}
    model = Glm5NextModel(CONFIG, main, dtype=torch.float32, device="cpu")
    with pytest.raises(StateError, match="without an MTP layer"):
        model.mtp_hidden(None, None, None)
