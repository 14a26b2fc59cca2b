"""Checkpoints of the real geometry without data."""

import pytest

from intarsia.selection.recipes import apply_recipe
from intarsia.selection.source import source_of
from tests.data import load_json
from tests.sparse import bf16_headers, write_sparse


@pytest.fixture(scope="session")
def real_config():
    config = load_json("nvidia_GLM-5.3-Flash-NVFP4.config.json")
    return {key: value for key, value in config.items() if key != "quantization_config"}


@pytest.fixture(scope="session")
def real(real_config, tmp_path_factory):
    """The BF16 checkpoint: 642 GB of holes."""
    folder = tmp_path_factory.mktemp("real") / "bf16"
    return write_sparse(folder, real_config, bf16_headers(real_config))


@pytest.fixture(scope="session")
def real_source(real):
    return source_of(real)


@pytest.fixture(scope="session")
def spark(real_source):
    return apply_recipe("spark", real_source)
