"""The commands quality, bench speed/compare/memory, report and receipt, on the demo in small."""

import json
import shutil
from pathlib import Path

import pytest

from intarsia.checkpoint.paths import DEMO
from intarsia.cli.main import main

SMALL = ["--tokens", "1x32", "--repeat-windows", "1"]


def test_quality_keeps_a_receipt_and_a_page_that_verify(tmp_path, capsys):
    folder = tmp_path / "evidence"
    assert main(["quality", "demo", "--manifest", "nvfp4-experts", *SMALL, "--report", str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "KLD, nats a token" in shown
    assert "twice with a KLD of 0" in shown
    files = sorted(str(path) for path in folder.iterdir())
    assert [name.rsplit("/", 1)[1] for name in files] == ["quality-demo-by-nvfp4-experts.json", "report.html"]
    assert main(["receipt", "verify", *files]) == 0
    sources = json.loads(Path(files[0]).read_text())["code"]["sources_sha256"]
    assert f"made by this code (sources {sources[:16]})" in capsys.readouterr().out
    assert f", sources {sources[:12]}" in Path(files[1]).read_text()
    assert main(["receipt", "show", files[0]]) == 0
    assert "quality" in capsys.readouterr().out
    assert main(["report", str(folder)]) == 0


def test_quality_prints_one_document(capsys):
    assert main(["quality", "demo", "demo", *SMALL, "--no-layers", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["figures"]["kld"]["max"] == 0
    assert document["repeat"]["largest_kld"] == 0
    assert document["layers"] is None


def test_quality_takes_a_manifest_as_candidate(tmp_path, capsys):
    from intarsia.evidence.forms import open_form
    from intarsia.selection.manifest import write_manifest

    written = write_manifest(open_form("demo", "spark").manifest, tmp_path / "spark")
    assert main(["quality", "demo", str(written.parent), *SMALL, "--no-layers", "--json"]) == 0
    by_folder = json.loads(capsys.readouterr().out)
    assert main(["quality", "demo", "--manifest", "spark", *SMALL, "--no-layers", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["figures"] == by_folder["figures"]


@pytest.mark.parametrize(
    "words",
    [
        ["quality", "demo"],
        ["quality", "demo", "--manifest", "no-such-recipe"],
        ["quality", "demo", "demo", "--tokens", "16"],
        ["quality", "demo", "demo", "--tokens", "999x4096"],
        ["quality", "demo", "demo", "--device", "cuda:99"],
        ["quality", "demo", "demo", "--text", "no-such-file.txt"],
        ["quality", "demo", "demo", "--report", __file__],
        ["receipt", "verify"],
        ["receipt", "verify", "no-such-file.json"],
        ["receipt", "verify", "no-such-page.html"],
        ["receipt", "show"],
        ["receipt", "diff", "no-such-file.json", "no-such-file.json"],
        ["bench", "compare", "no-such-file.json", "no-such-file.json"],
        ["bench", "memory", "demo", "--device", "cuda:99"],
        ["bench", "memory", "demo", "--report", __file__],
        ["bench", "speed", "demo", "--device", "no such device"],
        ["bench", "speed", "demo", "--prompts", "9999", "--streams"],
        ["bench", "speed", "demo", "--rounds", "1"],
    ],
)
def test_wrong_use(words, capsys):
    assert main(words) == 2
    assert capsys.readouterr().err


def test_bench_speed_and_compare(tmp_path, capsys):
    words = ["bench", "speed", "demo", "--against-manifest", "spark", "--prompts", "64", "--streams", "1"]
    words += ["--decode-tokens", "3", "--rounds", "2", "--drafts", "0", "--report", str(tmp_path)]
    assert main(words) == 0
    assert "demo by spark against demo as stored" in capsys.readouterr().out
    a, b = (
        str(tmp_path / f"speed-{letter}-demo-{form}.json")
        for letter, form in (("a", "as-stored"), ("b", "by-spark"))
    )
    assert main(["bench", "compare", a, b, "--json"]) == 0
    assert {row["cell"] for row in json.loads(capsys.readouterr().out)} == {
        "prompt of 64 tokens",
        "decode, 1 stream",
    }
    assert main(["receipt", "diff", a, b]) == 1
    assert "manifest_sha256" in capsys.readouterr().out
    assert main(["receipt", "diff", a, a]) == 0


def test_runs_of_other_settings_are_refused_by_field(tmp_path, capsys):
    for name, rounds in (("a", "2"), ("b", "3")):
        words = [
            "bench",
            "speed",
            "demo",
            "--prompts",
            "64",
            "--streams",
            "--decode-tokens",
            "3",
            "--drafts",
            "0",
        ]
        assert main([*words, "--rounds", rounds, "--report", str(tmp_path / name)]) == 0
    files = [str(next((tmp_path / name).glob("*.json"))) for name in ("a", "b")]
    assert main(["bench", "compare", *files]) == 1
    assert "settings.rounds" in capsys.readouterr().err


def test_runs_of_two_sessions_compare(tmp_path, capsys):
    """Written to other folders, of other forms: that is what is compared."""
    words = ["bench", "speed", "demo", "--prompts", "64", "--streams", "--rounds", "2", "--drafts", "0"]
    assert main([*words, "--report", str(tmp_path / "a")]) == 0
    assert main([*words, "--manifest", "spark", "--report", str(tmp_path / "b")]) == 0
    files = [str(next((tmp_path / name).glob("*.json"))) for name in ("a", "b")]
    capsys.readouterr()
    assert main(["bench", "compare", *files, "--json"]) == 0
    assert [row["pairs"] for row in json.loads(capsys.readouterr().out)] == [2]


def test_prompts_beyond_the_window_run_where_it_is_asked(tmp_path, capsys):
    narrow, kept = shutil.copytree(DEMO, tmp_path / "narrow"), tmp_path / "kept"
    config = json.loads((narrow / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = 256
    (narrow / "config.json").write_text(json.dumps(config))
    words = ["bench", "speed", str(narrow), "--text", str(DEMO / "heldout.txt"), "--prompts", "300"]
    words += ["--streams", "--rounds", "2", "--warm-ups", "0", "--beyond-window", "--report", str(kept)]
    assert main(words) == 0
    assert "prompt of 300 tokens" in capsys.readouterr().out
    document = json.loads(next(kept.glob("*.json")).read_text())
    assert any("beyond the model's window of 256" in note for note in document["not_run"])
    assert document["settings"]["beyond_window"] is True
    assert "report" not in document["settings"]


def test_a_report_tells_what_is_odd_in_its_folder(tmp_path, capsys):
    assert main(["bench", "memory", "demo", "--context", "512", "--report", str(tmp_path)]) == 0
    (tmp_path / "torn.json").write_text("{")
    assert main(["report", str(tmp_path)]) == 0
    assert "[not-a-receipt] torn.json" in capsys.readouterr().err
    file = tmp_path / "memory-demo-as-stored.json"
    file.write_text(file.read_text().replace('"context": 512', '"context": 513', 1))
    assert main(["report", str(tmp_path)]) == 1
    assert "[receipt-id] memory-demo-as-stored.json" in capsys.readouterr().err


def test_bench_memory(tmp_path, capsys):
    assert main(["bench", "memory", "demo", "--context", "512", "--report", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert all(
        row["predicted"] == row["measured"] for row in document["owners"] if row["moment"] == "service"
    )
    assert main(["receipt", "verify", str(next(tmp_path.glob("*.json"))), "--json"]) == 0


def test_a_changed_receipt_fails(tmp_path, capsys):
    assert main(["bench", "memory", "demo", "--context", "512", "--report", str(tmp_path)]) == 0
    file = next(tmp_path.glob("*.json"))
    file.write_text(file.read_text().replace('"context": 512', '"context": 513', 1))
    capsys.readouterr()
    assert main(["receipt", "verify", str(file)]) == 1
    assert "receipt-id" in capsys.readouterr().out
