"""`make demo` does the main job on the model in the package."""

import importlib.util
import sys
from pathlib import Path

import intarsia

DEMO = Path(__file__).parents[2] / "tools" / "demo.py"


def test_the_demo_shows_every_part(tmp_path, monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    out = tmp_path / "fp4"
    monkeypatch.setattr(sys, "argv", ["demo.py", "--out", str(out), "--max-tokens", "12"])
    assert demo.main() == 0
    text = capsys.readouterr().out
    for words in ("NVFP4", "MXFP8", "FP8_PB_WO", "F32", "clean", "tokens/s", "drafts accepted"):
        assert words in text
    assert "0 violations" in text
    assert "without drafts the same" in text
    assert intarsia.open_checkpoint(out).weight_bytes < 0.6 * intarsia.open_checkpoint("demo").weight_bytes
