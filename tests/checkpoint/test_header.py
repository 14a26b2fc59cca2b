"""One crafted header a rule; the safetensors library is the second opinion."""

import json

import pytest
from safetensors import SafetensorError, safe_open

from intarsia.checkpoint import audit, open_checkpoint
from intarsia.checkpoint.errors import InvalidCheckpointError
from tests.checkpoint.build import header_of, rules, shard


def entry(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


ONE = json.dumps(entry())
TWICE = b'{"a": ' + ONE.encode() + b', "a": ' + ONE.encode() + b"}"
FIELD_TWICE = b'{"a": {"dtype": "F32", ' + ONE.encode()[1:] + b"}"

CASES = [
    ("header-truncated", b"", b""),
    ("header-json", b"[]", b""),
    ("header-json", b" {}", b""),
    ("header-json", b"{", b"}"),
    ("header-json", TWICE, bytes(8)),
    ("header-json", FIELD_TWICE, bytes(8)),
    ("header-json", b'{"a":' * 2000, b""),
    ("header-json", json.dumps({"a": entry(shape=[2.0])}).encode(), bytes(8)),
    ("header-json", b'{"a":{"dtype":"F32","shape":[-0],"data_offsets":[0,0]}}', b""),
    ("header-json", b'{"\\ud800":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}', b""),
    ("header-name", {"": entry()}, bytes(8)),
    ("header-name", {"a\u0000b": entry()}, bytes(8)),
    ("header-name", {"x" * 1025: entry()}, bytes(8)),
    ("header-entry", {"a": [1]}, bytes(8)),
    ("header-entry", {"a": {"dtype": "F32", "shape": [2]}}, bytes(8)),
    ("header-entry", {"a": entry() | {"strides": [1]}}, bytes(8)),
    ("header-dtype", {"a": entry("F5")}, bytes(8)),
    ("header-dtype", {"a": entry(None)}, bytes(8)),
    ("header-dtype", {"a": entry(["F32"])}, bytes(8)),
    ("header-shape", {"a": entry(shape=[True, 2])}, bytes(8)),
    ("header-shape", {"a": entry(shape=[-1, -2])}, bytes(8)),
    ("header-shape", {"a": entry(shape=["2"])}, bytes(8)),
    ("header-shape", {"a": entry(shape=[1] * 9)}, bytes(8)),
    ("header-shape", {"a": entry() | {"shape": 2}}, bytes(8)),
    ("header-offsets", {"a": entry(offsets=[8, 0])}, bytes(8)),
    ("header-offsets", {"a": entry(offsets=[0])}, bytes(8)),
    ("header-offsets", {"a": entry(offsets=[False, 8])}, bytes(8)),
    ("header-offsets", {"a": entry(offsets=[-8, 0])}, bytes(8)),
    ("shard-truncated", {"a": entry(offsets=[0, 8])}, bytes(7)),
    ("header-size", {"a": entry(shape=[3])}, bytes(8)),
    ("header-size", {"a": entry("F4", [1], [0, 1])}, bytes(1)),
    ("header-size", {"a": entry("U8", [2**32, 2**32], [0, 0])}, b""),
    ("header-size", {"a": entry("U8", [2**63, 2, 0], [0, 0])}, b""),
    ("header-size", {"a": entry("F64", [2**61], [0, 0])}, b""),
    ("header-hole", {"a": entry(offsets=[4, 12])}, bytes(12)),
    ("header-overlap", {"a": entry(), "b": entry()}, bytes(8)),
    ("header-overlap", {"a": entry(), "b": entry(offsets=[4, 12])}, bytes(12)),
    ("header-trailing", {"a": entry()}, bytes(9)),
    ("header-metadata", {"__metadata__": {"a": 1}, "a": entry()}, bytes(8)),
    ("header-metadata", {"__metadata__": "x", "a": entry()}, bytes(8)),
]


@pytest.mark.parametrize(("rule", "header", "data"), CASES, ids=[f"{n}-{c[0]}" for n, c in enumerate(CASES)])
def test_each_broken_rule_is_named(tmp_path, rule, header, data):
    shard(tmp_path / "model.safetensors", header, data)
    assert rule in rules(audit(tmp_path))
    with pytest.raises(InvalidCheckpointError):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"", "header-truncated"),
        (b"\2\0\0\0\0\0\0", "header-truncated"),
        (b"\3\0\0\0\0\0\0\0{}", "header-truncated"),
        ((100_000_001).to_bytes(8, "little") + b"{}", "header-too-long"),
        (b"\xff" * 8 + b"{}", "header-too-long"),
    ],
)
def test_the_length_of_a_header_is_checked_before_it_is_used(tmp_path, content, rule):
    (tmp_path / "model.safetensors").write_bytes(content)
    assert rules(audit(tmp_path)) == {rule}


def test_a_header_with_too_many_tensors_is_refused_before_it_is_parsed(tmp_path):
    text = b'{"a":{"data_offsets":[],' + b'"data_offsets":[],' * 500_001 + b'"x":0}}'
    shard(tmp_path / "model.safetensors", text, b"")
    assert rules(audit(tmp_path)) == {"header-entries"}


def test_a_header_of_empty_lists_is_refused_before_it_is_parsed(tmp_path):
    shard(tmp_path / "model.safetensors", b'{"a":[' + b"[]," * 3_000_000 + b"0]}", b"")
    assert rules(audit(tmp_path)) == {"header-json"}


KNOWN = "BOOL U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 I16 U16 F16 BF16 I32 U32 F32 C64 F64 I64 U64 F4 F6_E2M3 F6_E3M2"


@pytest.mark.parametrize("dtype", KNOWN.split())
def test_every_type_of_the_library_is_known_with_its_size(tmp_path, dtype):
    header, size = header_of({"a": (dtype, (4, 8)), "b": (dtype, (0, 8))})
    path = shard(tmp_path / "model.safetensors", header, size)
    with safe_open(path, framework="pt") as file:
        assert file.get_slice("a").get_dtype() == dtype
    assert open_checkpoint(tmp_path).entry("a").dtype == dtype


@pytest.mark.parametrize(
    ("header", "data"),
    [
        (b"{}", b""),
        (b"{} \n\t ", b""),
        ({"a": entry("U8", [], [0, 1])}, bytes(1)),
        ({"a": entry("U8", [0, 2**40], [0, 0])}, b""),
        ({"b": entry(offsets=[8, 16]), "a": entry()}, bytes(16)),
        ({"a": {"data_offsets": [0, 8], "shape": [2], "dtype": "F32"}}, bytes(8)),
        ({"__metadata__": {}, "a": entry()}, bytes(8)),
        ({"__metadata__": {"dtype": "a", "shape": "b", "data_offsets": "c"}, "a": entry()}, bytes(8)),
        ({name: entry("U8", [0], [0, 0]) for name in ("dtype", "shape", "data_offsets")}, b""),
    ],
)
def test_unusual_headers_that_are_fine(tmp_path, header, data):
    path = shard(tmp_path / "model.safetensors", header, data)
    open_checkpoint(tmp_path)
    try:
        with safe_open(path, framework="pt") as file:
            list(file.keys())
    except SafetensorError as error:
        pytest.fail(f"the library refuses it: {error}")
