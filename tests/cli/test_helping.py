"""Help fits its terminal, and a wrong name is answered with the one that was probably meant."""

import pytest

from intarsia.cli.helping import fold, meant
from intarsia.cli.main import COMMANDS, main

NESTED = [("bench", name) for name in ("serve", "load", "kernels")] + [
    ("receipt", "verify"),
    ("manifest", "write"),
]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS), *NESTED], ids=" ".join)
def test_no_line_of_help_is_wider_than_the_terminal(command, width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    assert main([*command, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert [line for line in lines if len(line) > width] == []


def test_lines_are_folded_behind_spaces_and_commas():
    assert fold("some words that are, all told, too many", 20) == "some words that are,\nall told, too many"
    assert fold("usage: x {aaa,bbb,ccc,ddd}", 18) == "usage: x {aaa,bbb,\n       ccc,ddd}"
    assert fold("│ a frame keeps its line as it is │", 10) == "│ a frame keeps its line as it is │"
    coloured = "\x1b[1mten\x1b[0m wide"
    assert fold(coloured, 10) == coloured
    assert fold("x" * 30 + " y", 10) == "x" * 30 + "\ny"


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["servee", "demo"], "serve"),
        (["inspct"], "inspect"),
        (["bench", "lod", "demo"], "bench load"),
        (["receipt", "verfiy"], "receipt verify"),
        (["something-else"], None),
        (["bench", "load", "--no-such"], None),
        (["inspect"], None),
        ([], None),
    ],
)
def test_a_near_name_is_suggested_for_a_wrong_one(words, near, capsys):
    assert meant(words, COMMANDS) == near
    assert main(words) == 2
    told = capsys.readouterr().err
    assert (f"Did you mean `intarsia {near}`?" in told) == (near is not None)
    assert ("Did you mean" in told) == (near is not None)
