"""intarsia inspect, audit and convert on real files."""

import json
import shutil

import pytest

from intarsia.cli.main import main


@pytest.fixture(scope="module")
def converted(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("converted") / "fp4"
    assert main(["convert", str(source), str(out), "--recipe", "fp4-local"]) == 0
    return out


@pytest.fixture
def damaged(source, tmp_path):
    folder = tmp_path / "damaged"
    shutil.copytree(source, folder)
    shard = sorted(folder.rglob("*.safetensors"))[0]
    shard.write_bytes(shard.read_bytes()[:-10])
    return folder


def test_inspect(source, capsys):
    assert main(["inspect", str(source)]) == 0
    captured = capsys.readouterr()
    assert "glm5_next" in captured.out
    assert "BF16" in captured.out
    assert "mtp: present" in captured.out
    assert "--all lists them" in captured.out
    assert captured.err == ""
    assert main(["inspect", str(source), "--all"]) == 0
    assert len(capsys.readouterr().out) > len(captured.out)


def test_inspect_json(converted, capsys):
    assert main(["inspect", str(converted), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["tensors"] > 100
    assert {"MXFP8", "FP8_PB_WO", "BF16"} <= {entry["format"] for entry in document["formats"]}
    assert document["weight_bytes"] == sum(shard["bytes"] for shard in document["shards"])
    assert document["violations"] == []


def test_audit(source, converted, capsys):
    for folder in (source, converted):
        assert main(["audit", str(folder), "--values"]) == 0
        assert capsys.readouterr().out.endswith("clean\n")
    assert main(["audit", str(converted), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["clean"] is True
    assert document["complete"] is True


def test_audit_of_a_damaged_checkpoint(damaged, capsys):
    assert main(["audit", str(damaged)]) == 1
    text = capsys.readouterr().out
    assert "violations: " in text.splitlines()[-1]
    assert main(["audit", str(damaged), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["clean"] is False
    assert len(document["violations"]) >= 1
    assert main(["inspect", str(damaged)]) == 1
    assert "wrong: [" in capsys.readouterr().out


def test_a_folder_without_weights_has_no_tables(tmp_path, capsys):
    assert main(["inspect", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "wrong: [no-weights]" in told
    assert "Module classes" not in told


def test_a_refused_configuration_is_a_violation(source, tmp_path, capsys):
    folder = tmp_path / "changed"
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["hc_mult"] = "four"
    (folder / "config.json").write_text(json.dumps(config))
    assert main(["audit", str(folder), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert any("hc_mult" in entry["where"] for entry in document["violations"])


def test_convert_json(source, tmp_path, capsys):
    words = ["convert", str(source), str(tmp_path / "out"), "--csf", "slab", "--json"]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["out_bytes"] < document["source_bytes"]
    assert (tmp_path / "out" / "config.json").exists()
    assert main(words) == 1  # the folder exists now
    assert "error" in json.loads(capsys.readouterr().out)


def test_convert_with_an_unknown_recipe(source, tmp_path, capsys):
    assert main(["convert", str(source), str(tmp_path / "out"), "--recipe", "no-such"]) == 2
    assert "fp4-local" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_generate_needs_a_real_tokenizer(source, capsys):
    """The tiny checkpoint's tokenizer.json is a stand-in: refused before any weight is read."""
    assert main(["generate", str(source), "x"]) == 1
    assert "tokenizer.json" in capsys.readouterr().err
