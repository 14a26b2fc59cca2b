"""The commands bench load and bench convert."""

import json

import pytest

from intarsia.cli.main import main


def test_loads_are_measured_in_turn_and_kept(tmp_path, capsys):
    words = ["bench", "convert", "demo", "--manifest", "spark", "--repeat", "2", "--report", str(tmp_path)]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "demo as stored" in shown
    assert "demo by spark" in shown
    receipt = tmp_path / "loads-demo-by-spark.json"
    assert main(["receipt", "verify", str(receipt)]) == 0
    results = json.loads(receipt.read_text())["results"]
    assert [sample["form"] for sample in results["samples"]] == ["demo as stored", "demo by spark"] * 2
    for sample in results["samples"]:
        assert sample["seconds"] == sample["headers"] + sample["load"] + sample["device_after"]
        assert 0.99 < sample["read_bytes"] / results["subjects"][0]["weight_bytes"] <= 1
    assert results["floors"]["copying"] is None


def test_one_form_prints_one_document(capsys):
    assert main(["bench", "load", "demo", "--repeat", "1", "--cold", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["forms"] == ["demo as stored"]
    assert document["settings"] == {"device": "cpu", "repeat": 1, "budget": None, "cold": True}
    assert "a cold page cache" not in document["not_run"]


@pytest.mark.parametrize("words", [["bench", "load", "demo", "--repeat", "0"], ["bench", "convert", "demo"]])
def test_wrong_use(words, capsys):
    assert main(words) == 2
    assert capsys.readouterr().err
