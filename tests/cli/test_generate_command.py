"""intarsia generate: streamed text, one JSON document, and what reaches the engine."""

import json

import pytest

from intarsia.cli.main import main
from intarsia.cli.output import printable


def test_text_streams_and_the_rest_goes_to_standard_error(stage, capsys):
    stage.say(" the cat sat 猫")
    assert main(["generate", "demo", "Once"]) == 0
    captured = capsys.readouterr()
    assert captured.out == " the cat sat 猫\n"
    assert "tokens/s" in captured.err
    assert "drafts accepted (by place: 100%" in captured.err
    assert f"ended by token {stage.end}" in captured.err
    assert stage.asked(0) == "Once"


def test_json_is_one_document(stage, capsys):
    stage.say("the cat")
    assert main(["generate", "demo", "Once", "--json", "--seed", "7", "--top-k", "3"]) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert captured.err == ""
    assert document["text"] == "the cat"
    assert document["tokens"][-1] == stage.end
    assert document["finish_reason"] == "stop"
    assert document["settings"]["seed"] == 7
    assert document["settings"]["top_k"] == 3
    assert document["settings"]["temperature"] == 0.5  # the checkpoint's own
    assert document["usage"] == {
        "prompt_tokens": len(stage.prompts[0]),
        "completion_tokens": len(document["tokens"]),
    }
    assert len(document["drafts"]["accepted"]) == len(document["drafts"]["drafted"])


def test_stop_strings_may_be_given_several_times(stage, capsys):
    stage.say("one two three", "one two three")
    assert main(["generate", "demo", "x", "--stop", "three", "--stop", "tw"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "one \n"
    assert "ended by 'tw'" in captured.err


def test_limits_and_drafts(stage, capsys):
    stage.say("a b c d e f g")
    assert main(["generate", "demo", "x", "--max-tokens", "3", "--no-drafts", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["tokens"]) == 3
    assert document["finish_reason"] == "length"
    assert document["drafts"] == {"steps": 2, "drafted": [], "accepted": []}
    assert stage.settings.drafts == 0


def test_engine_settings_arrive(stage, capsys):
    stage.say("a")
    words = ["--window", "64", "--drafts", "2", "--dtype", "bfloat16", "--threads", "1"]
    assert main(["generate", "demo", "x", *words]) == 0
    settings = stage.settings
    assert (settings.window, settings.drafts, settings.dtype, settings.threads) == (64, 2, "bfloat16", 1)


def test_chat_goes_through_the_template(stage, capsys):
    stage.say("hm</think>yes")
    assert main(["generate", "demo", "Well?", "--chat"]) == 0
    assert capsys.readouterr().out == "hm</think>yes\n"
    assert stage.asked(0).endswith("Well?<think>")


def test_chat_without_a_template(stage, capsys):
    stage.template = None
    assert main(["generate", "demo", "Well?", "--chat"]) == 1
    assert "chat_template.jinja" in capsys.readouterr().err


def test_a_prompt_longer_than_the_window(stage, capsys):
    assert main(["generate", "demo", "word " * 200, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["type"] == "WindowError"
    assert stage.prompts == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a\x1b[31mb", "a\ufffd[31mb"), ("a\tb\n", "a\tb\n"), ("é猫\x9b", "é猫\ufffd"), ("", "")],
)
def test_printable(text, shown):
    assert printable(text) == shown
