"""intarsia chat with a server's model."""

import io
import json

import pytest

from intarsia.cli.main import main


@pytest.fixture
def talk(server, monkeypatch, capsys):
    def run(*lines, words=()):
        monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines) + "\n"))
        code = main(["chat", "--url", server.url, *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_thinking_and_answers(talk):
    order = json.dumps({"think": "hm", "say": "cat"})
    code, out, err = talk(order, "dogs")
    assert code == 0
    assert out == "<think>hm</think>\ncat\n<think>Let me think.</think>\nYou said: dogs\n"
    assert "demo at 127.0.0.1" in err
    assert "of the prompt reused (" in err


def test_options_reach_the_server(talk):
    order = json.dumps({"say": "one two three"})
    assert talk(order, words=("--no-thinking", "--stop", " three"))[1] == "one two\n"
    assert talk(order, words=("--no-thinking", "--max-tokens", "2"))[1].strip() != "one two three"


def test_a_refusal_is_told_and_the_talk_goes_on(talk):
    code, out, err = talk("word " * 5000, "dogs", words=("--no-thinking",))
    assert code == 0
    assert out == "You said: dogs\n"
    assert "status 400" in err


def test_what_belongs_to_loading_is_refused(talk, capsys):
    assert talk("x", words=("--window", "64"))[0] == 2
    assert main(["chat"]) == 2
    assert main(["chat", "demo", "--url", "http://127.0.0.1:1"]) == 2
    assert main(["chat", "--url", "http://127.0.0.1:9"]) == 1
    capsys.readouterr()
