"""A receipt is written once, names what it is of, and shows when it was changed."""

import json

import pytest

from intarsia.core import receipt
from intarsia.core.receipt import Memory, ReceiptError, SourceFile, SourceIdentity


@pytest.fixture
def made(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"12345")
    digest = "5994471abb01112afcc18159f6cc74b4f511b99806da59b3caf5a9c173cacfc5"
    files = [SourceFile("model.safetensors", 5, digest), SourceFile("gone.safetensors", 9)]
    source = SourceIdentity(str(tmp_path), "glm5_next", "ab" * 32, files)
    return receipt.make(
        "load",
        "2026-01-02T03:04:05Z",
        {"device": "cpu"},
        source=source,
        measured=Memory("resident size", 10, 2, 12),
        tensors={"norm": "cd" * 32},
        not_run=["nothing was run"],
    )


def test_what_is_written_is_read_and_verified(made, tmp_path):
    path = receipt.write(made, tmp_path / "receipts" / "load.json")
    found, violations = receipt.verify(path)
    assert found == made
    assert violations == []
    assert receipt.unchecked(found) == [
        "gone.safetensors is not there",
        "gone.safetensors: its content was not hashed",
        "1 tensor hashes: load or audit the weights to compare them",
    ]
    assert [item.name for item in path.parent.iterdir()] == ["load.json"]


def test_nothing_is_overwritten(made, tmp_path):
    path = receipt.write(made, tmp_path / "load.json")
    before = path.read_bytes()
    with pytest.raises(ReceiptError, match="does not exist yet"):
        receipt.write(made, path)
    with pytest.raises(ReceiptError, match="already there"):
        receipt.refuse_existing(path)
    assert path.read_bytes() == before
    assert {item.name for item in tmp_path.iterdir()} == {"load.json", "model.safetensors"}


def test_the_id_covers_every_field(made, tmp_path):
    document = json.loads(receipt.canonical(made))
    for number, (field, value) in enumerate(
        [("kind", "convert"), ("settings", {}), ("not_run", []), ("tensors", {"norm": "00"})]
    ):
        path = tmp_path / f"{number}.json"
        path.write_text(json.dumps(document | {field: value}, sort_keys=True, indent=1) + "\n")
        assert [violation.rule for violation in receipt.verify(path)[1]] == ["receipt-id"]


def test_another_spelling_is_noted(made, tmp_path):
    path = tmp_path / "spaced.json"
    path.write_text(json.dumps(json.loads(receipt.canonical(made)), indent=4))
    assert [violation.rule for violation in receipt.verify(path)[1]] == ["receipt-form"]


@pytest.mark.parametrize(("content", "rule"), [(b"12346", "source-hash"), (b"1234", "source-size")])
def test_a_source_that_changed_is_seen(made, tmp_path, content, rule):
    path = receipt.write(made, tmp_path / "load.json")
    (tmp_path / "model.safetensors").write_bytes(content)
    (violation,) = receipt.verify(path)[1]
    assert (violation.rule, violation.where) == (rule, "model.safetensors")


@pytest.mark.parametrize(
    "text", ["{", '{"schema": "other/1"}', '{"kind": "a", "kind": "b"}', '{"schema": "intarsia.receipt/2"}']
)
def test_what_is_no_receipt_is_refused(tmp_path, text):
    path = tmp_path / "no.json"
    path.write_text(text)
    with pytest.raises(ReceiptError, match=r"intarsia\.receipt/2"):
        receipt.read(path)
    with pytest.raises(ReceiptError):
        receipt.read(tmp_path / "missing.json")


def test_code_and_machine_are_named(made):
    assert made.code.version
    assert "torch" in made.code.libraries
    assert made.machine.cores >= 1
    assert made.machine.memory > 1 << 20
