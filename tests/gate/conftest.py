"""Checkpoints with unequal and unaligned shares in every format."""

import pytest

from intarsia.checkpoint import open_checkpoint
from intarsia.loading.export import convert
from tests.synthetic import tiny_config, write_source

SIZES = {"moe_intermediate_size": 192, "intermediate_size": 192, "vocab_size": 320}
SIZES |= {"num_attention_heads": 3, "num_key_value_heads": 3, "v_head_dim": 64}
SIZES |= {"qk_nope_head_dim": 32, "qk_head_dim": 32, "n_routed_experts": 4, "num_experts_per_tok": 2}


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    return write_source(tmp_path_factory.mktemp("gate") / "bf16", tiny_config(**SIZES))


@pytest.fixture(scope="session", params=["block", "slab", "none"])
def mixed(source, request, tmp_path_factory):
    out = tmp_path_factory.mktemp("gate") / request.param
    convert(source.path, out, recipe="fp4-local", csf=request.param)
    return open_checkpoint(out)
