"""The demo model converted once a session, with each codec."""

from pathlib import Path

import pytest

import intarsia

CODECS = ("block", "slab")
SHARD_BYTES = 1 << 20  # many shards, so that damaging one copies little


@pytest.fixture(scope="session")
def converted(tmp_path_factory) -> dict[str, Path]:
    """Codec -> folder of the demo in the FP4-Local layout."""
    root = tmp_path_factory.mktemp("fp4-local")
    for codec in CODECS:
        intarsia.convert("demo", root / codec, recipe="fp4-local", csf=codec, shard_size=SHARD_BYTES)
    return {codec: root / codec for codec in CODECS}
