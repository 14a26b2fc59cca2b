"""intarsia chat, fed through a pipe."""

import io

import pytest

from intarsia.cli import chat, output
from intarsia.cli.main import main


@pytest.fixture
def talk(stage, monkeypatch, capsys):
    def run(lines, *words):
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        code = main(["chat", "demo", *words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_history_is_kept_without_thoughts(stage, talk):
    stage.say("hm</think>cat", "well</think>dog")
    code, out, err = talk("first\n\nsecond\n")
    assert code == 0
    assert out == "<think>hm</think>\ncat\n<think>well</think>\ndog\n"
    assert stage.asked(0) == "first<think>"
    assert stage.asked(1) == "firstcatsecond<think>"
    assert err.count("tokens/s") == 2


def test_reset_exit_and_unknown_commands(stage, talk):
    stage.say("a</think>b", "c</think>d")
    code, _, err = talk("first\n/reset\n/what now\nsecond\n/exit\nthird\n", "--system", "Be brief.")
    assert code == 0
    assert [stage.asked(number) for number in range(len(stage.prompts))] == [
        "Be brief.first<think>",
        "Be brief.second<think>",
    ]
    assert "begins anew" in err
    assert "/what is no command" in err


def test_no_thinking(stage, talk):
    stage.say("yes")
    assert talk("well?\n", "--no-thinking")[1] == "yes\n"
    assert stage.asked(0).endswith("<think></think>")


def test_thinking_cut_short(stage, talk):
    stage.say("thinking on and on")
    assert talk("well?\n")[1] == "<think>thinking on and on</think>\n"


def test_dim_thinking_on_a_terminal(stage, talk, monkeypatch):
    for module in (chat, output):
        monkeypatch.setattr(module, "colours", lambda: True)
    stage.say("hm</think>cat")
    _, out, _ = talk("first\n")
    assert out.replace("\x1b[0m\x1b[2m", "") == "\x1b[2mhm\x1b[0m\ncat\n"


def test_a_conversation_that_outgrows_the_window(stage, talk):
    stage.say("a</think>b")
    code, _, err = talk("word " * 300 + "\nshort\n")
    assert code == 0
    assert "/reset begins a new conversation" in err
    assert stage.asked(0) == "short<think>"


def test_an_interrupt_ends_the_reply_only(stage, talk, monkeypatch):
    stage.say("a</think>one two three", "b</think>next")
    pieces = []

    def write(text, *, dim=False):
        pieces.append(text)
        if "two" in "".join(pieces):
            pieces.clear()
            raise KeyboardInterrupt

    monkeypatch.setattr(chat, "write", write)
    code, _, err = talk("first\nsecond\n")
    assert code == 0
    assert "(ended here)" in err
    assert "three" not in "".join(pieces)
    assert len(stage.prompts) == 2
    assert stage.asked(1).startswith("firstone")


def test_without_a_template(stage, talk):
    stage.template = None
    assert talk("x\n")[0] == 1


def test_input_that_is_not_text(stage, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe\n"), encoding="utf-8"))
    assert main(["chat", "demo"]) == 2
    assert "UTF-8" in capsys.readouterr().err
