"""Manifests and plans of a folder whose shards end behind their headers."""

import shutil

import pytest

from intarsia.api import make_manifest
from intarsia.checkpoint import open_checkpoint
from intarsia.checkpoint.errors import InvalidCheckpointError, TruncatedError
from intarsia.loading.weights import load_weights
from intarsia.planning.plan import plan
from tests.synthetic import write_source


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return write_source(tmp_path_factory.mktemp("whole") / "source")


@pytest.fixture(scope="module", params=[0, 100])
def headers(whole, request, tmp_path_factory):
    """A copy whose shards have `param` bytes of data left."""
    folder = tmp_path_factory.mktemp("headers") / "source"
    shutil.copytree(whole.path, folder)
    for shard in whole.shards:
        with open(folder / shard.name, "r+b") as file:
            file.truncate(shard.header_size + request.param)
    return folder


def test_manifests_and_plans_are_those_of_the_whole(whole, headers):
    manifest = make_manifest("spark", headers)
    before, after = plan(whole, make_manifest("spark", whole)), plan(headers, manifest)
    assert after.ok
    expected, found = before.as_dict(), after.as_dict()
    assert {key for key in expected if expected[key] != found[key]} == {"checkpoint"}  # its folder


def test_nothing_else_takes_them(headers):
    with pytest.raises(InvalidCheckpointError) as refusal:
        load_weights(headers)
    assert {violation.rule for violation in refusal.value.violations} >= {"shard-truncated"}
    with pytest.raises(TruncatedError):
        load_weights(open_checkpoint(headers, data_required=False))


def test_a_header_that_is_wrong_is_still_refused(whole, tmp_path):
    folder = tmp_path / "source"
    shutil.copytree(whole.path, folder)
    shard = folder / whole.shards[0].name
    data = bytearray(shard.read_bytes()[: whole.shards[0].header_size])
    at = data.index(b'"data_offsets":[0,') + len(b'"data_offsets":[')
    data[at : at + 1] = b"1"
    shard.write_bytes(data)
    with pytest.raises(InvalidCheckpointError) as refusal:
        open_checkpoint(folder, data_required=False)
    assert {violation.rule for violation in refusal.value.violations} >= {"header-size"}
