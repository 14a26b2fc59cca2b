"""The commands bench load and bench convert."""

import json
import re
from html import unescape

import msgspec
import pytest

from intarsia.cli.main import main
from intarsia.core import receipt as receipts
from intarsia.evidence.report.numbers import number
from intarsia.evidence.report.page import page


def text(document):
    """A page as it is read."""
    return unescape(re.sub(r"<[^>]+>", "", document))


def test_loads_are_measured_in_turn_and_kept(tmp_path, capsys):
    words = ["bench", "convert", "demo", "--manifest", "spark", "--repeat", "2", "--report", str(tmp_path)]
    assert main(words) == 0
    shown, told = capsys.readouterr()
    assert "demo as stored" in shown
    assert "demo by spark" in shown
    assert "peak" not in shown
    assert "not shown: peaks of memory against the plan's: on a CPU" in told
    receipt = tmp_path / "loads-demo-by-spark.json"
    assert main(["receipt", "verify", str(receipt)]) == 0
    results = json.loads(receipt.read_text())["results"]
    assert [sample["form"] for sample in results["samples"]] == ["demo as stored", "demo by spark"] * 2
    for sample in results["samples"]:
        assert sample["seconds"] == sample["headers"] + sample["load"] + sample["device_after"]
        assert 0.99 < sample["read_bytes"] / results["subjects"][0]["weight_bytes"] <= 1
    assert results["floors"]["copying"] is None
    shown = text((tmp_path / "report.html").read_text())
    assert "Loadsdemo as stored and demo by spark" in shown
    assert "of the plan's peak" not in shown
    assert shown.count("Every load, seconds by phase") == 1
    median, floors = results["median_seconds"]["demo by spark"], results["floors"]
    floor = results["samples"][1]["read_bytes"] / floors["reading"]
    assert f"{number(median)} s (floor {number(floor)})" in shown


def test_the_floor_of_a_load_to_a_gpu_is_the_longer_of_reading_and_copying(tmp_path):
    assert main(["bench", "load", "demo", "--repeat", "1", "--report", str(tmp_path)]) == 0
    on_cpu = receipts.read(tmp_path / "loads-demo-as-stored.json")
    carried = on_cpu.results | {"floors": {"threads": 8, "reading": 1e9, "copying": 1e8}}
    settings = on_cpu.settings | {"device": "cuda:0"}
    on_gpu = msgspec.structs.replace(on_cpu, results=carried, settings=settings)
    shown = text(page({"a": on_gpu}).decode())
    assert "of the plan's peak" in shown
    assert "with 8 threads at 1.00 GB/s, beside copies to the device at 100.00 MB/s." in shown
    assert f"(floor {number(on_cpu.results['samples'][0]['read_bytes'] / 1e8)})" in shown


def test_one_form_prints_one_document(capsys):
    assert main(["bench", "load", "demo", "--repeat", "1", "--cold", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["forms"] == ["demo as stored"]
    assert document["settings"] == {"device": "cpu", "repeat": 1, "budget": None, "cold": True}
    assert "a cold page cache" not in document["not_run"]
    assert any(left_out.startswith("peaks of memory") for left_out in document["not_run"])


@pytest.mark.parametrize("words", [["bench", "load", "demo", "--repeat", "0"], ["bench", "convert", "demo"]])
def test_wrong_use(words, capsys):
    assert main(words) == 2
    assert capsys.readouterr().err
