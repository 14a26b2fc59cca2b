"""Receipts of loads and conversions say what was done, predicted and measured."""

import hashlib
import json

import pytest

from intarsia.core import receipt as receipts
from intarsia.core.receipt import ReceiptError
from intarsia.formats import Stored
from intarsia.loading.export import convert
from intarsia.loading.receipts import plan_receipt
from intarsia.loading.weights import load_weights
from intarsia.planning.plan import plan
from intarsia.selection.manifest import manifest_hash
from intarsia.selection.recipes import apply_recipe
from intarsia.selection.source import source_of


def test_a_load_with_conversion(source, tmp_path):
    manifest = apply_recipe("spark", source_of(source))
    path = tmp_path / "load.json"
    weights = load_weights(source, manifest=manifest, receipt=path, budget=8 << 20)
    found, violations = receipts.verify(path)
    assert violations == []
    assert found.kind == "load"
    assert found.manifest_sha256 == manifest_hash(manifest)
    assert found.settings == {"layer_max_input_scale": "off", "device": "cpu", "budget": 8 << 20}
    assert [phase.name for phase in found.phases] == ["headers", "read and encode", "hash"]
    assert all(phase.seconds > 0 for phase in found.phases)
    total = sum(weight.nbytes for weight in weights.values())
    assert found.predicted.weights == found.measured.weights == total
    assert total < found.predicted.peak <= total + found.predicted.working
    count = sum(len(weight) if isinstance(weight, Stored) else 1 for weight in weights.values())
    assert len(found.tensors) == count
    packed = weights["mtp.mlp.experts.down"]["weight"]
    assert found.tensors["mtp.mlp.experts.down/weight"] == hashlib.sha256(packed.numpy()).hexdigest()
    assert [(file.name, file.size) for file in found.source.files] == [
        (s.name, s.size) for s in source.shards
    ]
    assert any("not run" in note for note in found.not_run)


def test_two_loads_have_the_same_hashes(source, tmp_path):
    for name in "ab":
        load_weights(source, receipt=tmp_path / name)
    a, b = (receipts.read(tmp_path / name) for name in "ab")
    assert a.tensors == b.tensors
    assert a.manifest_sha256 is None


def test_a_conversion_agrees_with_the_record_in_its_folder(small, tmp_path):
    out = convert(small().path, tmp_path / "out", recipe="fp4-local", receipt=tmp_path / "convert.json")
    found = receipts.read(tmp_path / "convert.json")
    record = json.loads((out.path / "conversion.json").read_text())
    assert found.tensors == record["tensors"]
    assert found.manifest_sha256 == record["manifest_sha256"]
    assert found.phases[-1].bytes == sum(entry.nbytes for entry in small("again").tensors.values())


def test_a_receipt_that_would_overwrite_stops_the_work_before_it_begins(small, tmp_path):
    path = tmp_path / "there.json"
    path.write_text("mine")
    source = small()
    with pytest.raises(ReceiptError):
        convert(source.path, tmp_path / "out", recipe="spark", receipt=path)
    with pytest.raises(ReceiptError):
        load_weights(source, receipt=path)
    assert path.read_text() == "mine"
    assert not (tmp_path / "out").exists()


def test_a_plan_says_that_nothing_was_read(source):
    result = plan(source, ranks=2)
    found = plan_receipt(result, {"ranks": 2}, source)
    assert found.predicted.weights == max(rank.weights for rank in result.ranks)
    assert found.results["ranks"][1]["weights"] == result.ranks[1].weights
    assert "no weight was read" in found.not_run
