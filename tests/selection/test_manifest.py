"""Manifest files: strict, canonical, written once."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from intarsia.selection.errors import ManifestError
from intarsia.selection.manifest import (
    Manifest,
    ScalePolicy,
    Section,
    manifest_bytes,
    manifest_hash,
    parse_manifest,
    read_manifest,
    write_manifest,
)

EXAMPLE = Manifest(
    schema="intarsia.manifest/1",
    main=Section(
        targets={"b": "MXFP8", "a": "NVFP4"}, scales=ScalePolicy("csf", "nvfp4_slab", {"c": "native"})
    ),
    draft=Section(strict=False),
    recipe="spark",
)


def test_a_written_manifest_reads_back_from_the_file_and_from_its_folder(tmp_path):
    file = write_manifest(EXAMPLE, tmp_path / "deep" / "out")
    assert read_manifest(file) == EXAMPLE
    assert read_manifest(file.parent) == EXAMPLE
    assert [path.name for path in file.parent.iterdir()] == ["manifest.json"]
    assert [path.name for path in file.parent.parent.iterdir()] == ["out"]


def test_an_existing_folder_is_never_written(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(ManifestError, match="already there"):
        write_manifest(EXAMPLE, tmp_path / "out")
    assert list(tmp_path.rglob("*")) == [tmp_path / "out"]


def test_equal_manifests_have_equal_bytes_and_hashes():
    other = Manifest(
        schema="intarsia.manifest/1",
        main=Section(targets={"a": "NVFP4", "b": "MXFP8"}, scales=EXAMPLE.main.scales),
        draft=Section(strict=False),
        recipe="spark",
    )
    assert manifest_bytes(other) == manifest_bytes(EXAMPLE)
    assert manifest_hash(other) == manifest_hash(EXAMPLE)
    assert manifest_hash(other) != manifest_hash(Manifest(schema="intarsia.manifest/1", main=Section()))


def document(**changes):
    return json.dumps({"schema": "intarsia.manifest/1", "main": {"targets": {"a": "MXFP8"}}} | changes)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"schema": "intarsia.manifest/1", "main": {"targets": {"a": "MXFP8", "a": "NVFP4"}}}', "'a' twice"),
        (document(schema="intarsia.manifest/2"), "schema"),
        (document(main={"target": {}}), "target"),
        (document(main={"targets": {"a": 3}}), "targets"),
        (document(main={"targets": {}, "strict": 1}), "strict"),
        (document(main={"scales": {"policy": "zip"}}), "policy"),
        (document(extra=1), "extra"),
        ("[]", "array"),
        ("{", "malformed"),
        ('{"schema": "intarsia.manifest/1"}', "main"),
    ],
)
def test_anything_but_the_schema_is_refused_by_name(text, named):
    with pytest.raises(ManifestError, match=named):
        parse_manifest(text.encode(), "manifest.json")


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_cleanly(data):
    with pytest.raises(ManifestError) as refusal:
        parse_manifest(data, "manifest.json")
    assert refusal.value.__cause__ is None


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ManifestError, match="manifest"):
        read_manifest(tmp_path / "none")
