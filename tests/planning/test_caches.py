"""Caches of the real geometry, against the published bytes a token and a stream."""

import pytest

from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.planning.caches import PAGE, cache_bytes
from tests.data import load_json

KDA_STATE = 142_606_336
THREE_COLUMNS = 5_013_504
INDEX_TAIL = 24_576


@pytest.fixture(scope="module")
def config():
    return Glm5NextConfig.from_checkpoint_config(load_json("nvidia_GLM-5.3-Flash-NVFP4.config.json"))


def test_a_token_takes_its_published_bytes(config):
    window = 1 << 20
    paged = cache_bytes(config, context=window, streams=1, heads=64).paged
    assert paged == 13_056 * (window + PAGE)  # and the null page


def test_a_stream_takes_its_published_bytes(config):
    """One row a step: four columns of the convolution, a page table entry, and which copy is current."""
    fixed = cache_bytes(config, context=PAGE, streams=1, heads=64, step_rows=1).fixed
    assert fixed == KDA_STATE + THREE_COLUMNS * 4 // 3 + INDEX_TAIL + 2 * 4


def test_state_is_cut_by_heads_and_multiplied_by_rows(config):
    def fixed(heads, rows):
        return cache_bytes(config, context=PAGE, streams=1, heads=heads, step_rows=rows).fixed

    by_head = fixed(64, 1) - fixed(22, 1)
    assert by_head == (KDA_STATE + THREE_COLUMNS * 4 // 3) * 42 // 64
    assert fixed(64, 4) - fixed(64, 3) == KDA_STATE + THREE_COLUMNS // 3 + INDEX_TAIL // 4
