"""One small source, and its three FP4-Local conversions, made once."""

import pytest

from intarsia.checkpoint import open_checkpoint
from intarsia.loading.export import convert
from tests.synthetic import tiny_config, write_source


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    return write_source(tmp_path_factory.mktemp("source") / "bf16")


@pytest.fixture(scope="session", params=["block", "slab", "none"])
def csf(request):
    return request.param


@pytest.fixture(scope="session")
def converted(source, csf, tmp_path_factory):
    out = tmp_path_factory.mktemp("converted") / csf
    convert(source.path, out, recipe="fp4-local", csf=csf)
    return open_checkpoint(out)


@pytest.fixture
def small(tmp_path):
    """Writes a source of the fewest layers to change at will; returns its folder and tensors."""

    def write(name="small", change=None, **text):
        layers = ["linear_attention", "deepseek_sparse_attention"]
        config = tiny_config(
            num_hidden_layers=2,
            layer_types=layers,
            mlp_layer_types=["dense", "sparse"],
            first_k_dense_replace=1,
            indexer_types=["full"] * 2,
            linear_attn_config=None,
            **text,
        )
        return write_source(tmp_path / name, config, change=change)

    return write
