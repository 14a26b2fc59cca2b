"""The commands on the model in the package, as a user runs them."""

import io
import json

from intarsia.cli.main import main


def generate(capsys, *words):
    assert main(["generate", "demo", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_inspect_and_audit(capsys):
    assert main(["inspect", "demo"]) == 0
    text = capsys.readouterr().out
    assert "BF16" in text
    assert "F32" in text
    assert "tensors/" in text  # a shard in a folder
    assert "wrong:" not in text
    assert main(["audit", "demo", "--values"]) == 0
    assert capsys.readouterr().out.endswith("clean\n")


def test_drafts_change_the_steps_and_nothing_else(capsys):
    for words in (
        ["Once upon a time", "--max-tokens", "24"],
        ["What is 12 + 7?", "--chat", "--temperature", "0"],
    ):
        drafted = generate(capsys, *words)
        plain = generate(capsys, *words, "--no-drafts")
        assert drafted["tokens"] == plain["tokens"]
        assert drafted["text"] == plain["text"] != ""
        assert drafted["settings"] == plain["settings"]
        assert plain["drafts"]["steps"] == len(plain["tokens"]) - 1
        assert sum(drafted["drafts"]["accepted"]) > 0
        assert drafted["drafts"]["steps"] < plain["drafts"]["steps"]


def test_a_seed_repeats_and_another_differs(capsys):
    first, again, other = (
        generate(capsys, "Once upon a time", "--max-tokens", "12", "--temperature", "1.2", "--seed", seed)[
            "text"
        ]
        for seed in ("1", "1", "2")
    )
    assert first == again != other


def test_a_stop_string(capsys):
    whole = generate(capsys, "Once upon a time", "--max-tokens", "16")["text"]
    stop = whole[len(whole) // 2 :][:3]
    cut = generate(capsys, "Once upon a time", "--max-tokens", "16", "--stop", stop)
    assert cut["text"] == whole[: whole.index(stop)]
    assert cut["finish_reason"] == "stop"
    assert cut["stopped_by"] == stop


def test_chat(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("What is 12 + 7?\n/exit\n"))
    assert main(["chat", "demo", "--temperature", "0", "--max-tokens", "64"]) == 0
    captured = capsys.readouterr()
    thought, _, answer = captured.out.partition("</think>\n")
    assert thought.startswith("<think>")
    assert answer.strip()
    assert "drafts accepted" in captured.err
