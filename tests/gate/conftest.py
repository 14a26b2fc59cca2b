"""Checkpoints with unequal and unaligned shares in every format."""

import msgspec
import pytest

from intarsia.checkpoint import open_checkpoint
from intarsia.loading.export import convert
from intarsia.selection.manifest import ScalePolicy
from intarsia.selection.recipes import apply_recipe
from intarsia.selection.source import source_of
from tests.synthetic import tiny_config, write_source

SIZES = {"moe_intermediate_size": 192, "intermediate_size": 192, "vocab_size": 320}
SIZES |= {"num_attention_heads": 3, "num_key_value_heads": 3, "v_head_dim": 64}
SIZES |= {"qk_nope_head_dim": 32, "qk_head_dim": 32, "n_routed_experts": 4, "num_experts_per_tok": 2}

# Nine units of 64: shares begin inside blocks of 128 at two, three and four ranks.
UNEVEN = SIZES | {"moe_intermediate_size": 576, "intermediate_size": 576, "vocab_size": 576}
UNEVEN |= {"num_attention_heads": 4, "num_key_value_heads": 4, "n_routed_experts": 2}


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    return write_source(tmp_path_factory.mktemp("gate") / "bf16", tiny_config(**SIZES))


@pytest.fixture(scope="session", params=["block", "slab", "none"])
def mixed(source, request, tmp_path_factory):
    out = tmp_path_factory.mktemp("gate") / request.param
    convert(source.path, out, recipe="fp4-local", csf=request.param)
    return open_checkpoint(out)


@pytest.fixture(scope="session", params=["block", "slab"])
def uneven(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("gate")
    write_source(folder / "bf16", tiny_config(**UNEVEN))
    return convert(folder / "bf16", folder / request.param, recipe="fp4-local", csf=request.param)


@pytest.fixture(scope="session", params=["MXFP4", "FP8", "FP8_PER_CHANNEL_PER_TOKEN"])
def one_format(request, tmp_path_factory):
    """Everything that a recipe converts, in a format that no recipe names."""
    folder = tmp_path_factory.mktemp("gate")
    source = write_source(folder / "bf16", tiny_config(**UNEVEN))
    manifest = apply_recipe("fp4-local", source_of(source))

    def changed(section):
        targets = dict.fromkeys(section.targets, request.param)
        return msgspec.structs.replace(section, targets=targets, scales=ScalePolicy())

    main, draft = changed(manifest.main), changed(manifest.draft)
    manifest = msgspec.structs.replace(manifest, main=main, draft=draft)
    return request.param, convert(source.path, folder / "out", manifest=manifest)
