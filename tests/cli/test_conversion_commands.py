"""intarsia manifest, plan, load, convert --manifest, audit --expect and receipt on real files."""

import json

import pytest

from intarsia.cli.main import main
from intarsia.cli.sizes import size_in_bytes
from intarsia.core.errors import UsageError
from tests.synthetic import write_source

L = "model.language_model.layers."


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return str(write_source(tmp_path_factory.mktemp("commands") / "bf16").path)


@pytest.fixture(scope="module")
def manifest(source, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("manifest") / "spark")
    assert main(["manifest", "write", "--recipe", "spark", "--source", source, "--output-dir", folder]) == 0
    return folder


def document(capsys):
    return json.loads(capsys.readouterr().out)


def test_a_manifest_is_never_overwritten(source, manifest, capsys):
    words = ["manifest", "write", "--source", source, "--output-dir", manifest]
    assert main(words) == 1
    assert "does not exist yet" in capsys.readouterr().err


def test_check(source, manifest, tmp_path, capsys):
    assert main(["manifest", "check", manifest, "--source", source]) == 0
    assert "54 + 9 + 1 modules" in capsys.readouterr().out
    targets = {f"{L}0.self_attn.q_proj": "MXFP8", f"{L}0.self_attn.o_porj": "MXFP8"}
    wrong = tmp_path / "wrong.json"
    wrong.write_text(json.dumps({"schema": "intarsia.manifest/1", "main": {"targets": targets}}))
    assert main(["manifest", "check", str(wrong), "--source", source, "--json"]) == 1
    found = document(capsys)["violations"]
    assert [item["rule"] for item in found] == ["unresolved", "incomplete-group"]
    assert f"{L}0.self_attn.o_proj" in found[0]["action"]
    twice = '{"schema": "intarsia.manifest/1", "main": {"targets": {"a": "FP8", "a": "MXFP8"}}}'
    wrong.write_text(twice)
    assert main(["manifest", "check", str(wrong), "--source", source]) == 1
    assert "twice" in capsys.readouterr().err


def test_plan(source, manifest, tmp_path, capsys):
    receipt = tmp_path / "plan.json"
    words = ["plan", source, "--manifest", manifest, "--tp", "2", "--device-memory", "8GiB"]
    assert main([*words, "--json", "--receipt", str(receipt)]) == 0
    found = document(capsys)
    assert found["modules"] == {"main": 54, "draft": 9, "draft experts": 1}
    assert len(found["ranks"]) == 2
    assert main(["receipt", "verify", str(receipt)]) == 0
    assert main([*words, "--context", "100000000"]) == 1
    shown = capsys.readouterr().out
    assert "mtp.mlp.experts" in shown
    assert "equal shares" in shown
    assert "mlp.experts.*.down_proj" in shown
    assert "[context]" in shown
    assert main([*words[:-1], "lots"]) == 2


def test_load_converts_and_leaves_a_receipt(source, manifest, tmp_path, capsys):
    receipt = tmp_path / "load.json"
    words = ["load", source, "--manifest", manifest, "--budget", "8MiB"]
    assert main([*words, "--receipt", str(receipt)]) == 0
    shown = capsys.readouterr().out
    assert "read and encode" in shown
    assert "resident size" in shown
    assert main(["receipt", "verify", str(receipt)]) == 0
    assert main(["receipt", "show", str(receipt)]) == 0
    assert main([*words, "--receipt", str(receipt)]) == 1
    assert main(["load", source, "--manifest", manifest, "--budget", "100"]) == 1
    assert "working memory" in capsys.readouterr().err
    receipt.write_text(receipt.read_text().replace('"kind": "load"', '"kind": "plan"'))
    assert main(["receipt", "verify", str(receipt), "--json"]) == 1
    assert document(capsys)["violations"][0]["rule"] == "receipt-id"


def test_convert_audit_and_diff(source, manifest, tmp_path, capsys):
    out = str(tmp_path / "out")
    assert main(["convert", source, out, "--manifest", manifest, "--shard-size", "1MB", "--resume"]) == 0
    assert main(["audit", out, "--expect", manifest]) == 0
    assert main(["audit", out, "--expect", manifest, "--source", source]) == 0
    assert main(["manifest", "diff", manifest, out]) == 0
    assert main(["audit", source, "--expect", manifest]) == 1
    assert "not-converted" in capsys.readouterr().out
    assert main(["manifest", "diff", manifest, source]) == 1
    assert main(["audit", out, "--source", source]) == 2
    assert main(["convert", source, out, "--manifest", manifest, "--recipe", "spark"]) == 2


def test_two_manifests(source, manifest, tmp_path, capsys):
    other = str(tmp_path / "local")
    words = ["manifest", "write", "--recipe", "fp4-local", "--source", source, "--output-dir", other]
    assert main(words) == 0
    assert main(["manifest", "diff", manifest, other, "--source", source, "--json"]) == 1
    names = {item["name"] for item in document(capsys)["differences"]}
    assert {"lm_head", "main.grouping"} <= names
    assert main(["manifest", "diff", other, other]) == 0


@pytest.mark.parametrize(
    ("text", "size"), [("139GiB", 139 << 30), ("5GB", 5_000_000_000), ("1.5MiB", 3 << 19), ("12", 12)]
)
def test_sizes(text, size):
    assert size_in_bytes("--x", text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "5XB", "1e9", "nan"])
def test_sizes_that_are_none(text):
    with pytest.raises(UsageError, match="--x"):
        size_in_bytes("--x", text)


def test_a_plan_lists_what_cannot_be_cut(capsys):
    assert main(["plan", "demo", "--tp", "5"]) == 1
    shown = capsys.readouterr().out
    assert "cannot be cut, in no sum" in shown
    assert "4 width units of 64" in shown
