"""A network whose experts a kernel wants in tiles lays them out, and stays the same network."""

import pytest
import torch

from intarsia.checkpoint import open_checkpoint
from intarsia.kernels import choice
from intarsia.kernels.errors import KernelError
from intarsia.kernels.experts import PackedExperts
from intarsia.loading.weights import load_weights, prepared
from intarsia.models.glm5_next.model import Glm5NextModel
from intarsia.models.glm5_next.weights import MoeWeights
from intarsia.selection.recipes import apply_recipe
from intarsia.selection.source import source_of

TOKENS = [5, 900, 17, 3, 2048, 44]


@pytest.fixture(scope="module")
def arrangement():
    checkpoint = open_checkpoint("demo")
    return prepared(checkpoint, apply_recipe("fp4-local", source_of(checkpoint)))


def network(arrangement, expert_scales="expanded") -> Glm5NextModel:
    weights = load_weights(arrangement)
    return Glm5NextModel(
        arrangement.config, weights, dtype=torch.bfloat16, device="cpu", expert_scales=expert_scales
    )


@pytest.fixture(scope="module")
def stored(arrangement):
    return network(arrangement)


@pytest.mark.parametrize("expert_scales", ["expanded", "resident"])
def test_experts_in_tiles_are_the_stored_ones(monkeypatch, arrangement, stored, expert_scales):
    with monkeypatch.context() as patched:
        patched.setattr(choice, "no_gluon", lambda device: "")
        tiled = network(arrangement, expert_scales)
    blocks = [layer.block for layer in tiled.weights.layers] + [tiled.weights.mtp.block]
    before = [layer.block for layer in stored.weights.layers] + [stored.weights.mtp.block]
    routed = [(a.mlp, b.mlp) for a, b in zip(blocks, before, strict=True) if isinstance(a.mlp, MoeWeights)]
    assert len(routed) == arrangement.config.num_hidden_layers - 3 + 1
    for mine, theirs in routed:
        for name in ("gate_up", "down"):
            packed, stack = getattr(mine.experts, name), getattr(theirs.experts, name)
            assert isinstance(packed, PackedExperts)
            assert packed.shape == stack.shape
            for suffix, tensor in packed.expert(7).items():
                expected = stack.expert(7)[suffix]
                assert torch.equal(
                    tensor.reshape(-1).view(torch.uint8), expected.reshape(-1).view(torch.uint8)
                )
    assert torch.equal(tiled.logits(TOKENS), stored.logits(TOKENS))


def test_compressed_scales_are_refused_where_no_kernel_reads_them(arrangement):
    with pytest.raises(KernelError, match="the device is cpu"):
        network(arrangement, "resident")
