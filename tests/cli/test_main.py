"""Arguments, exit codes, errors and a quick start."""

import json
import os
import re
import subprocess
import sys

import pytest

from intarsia.cli import main as entry
from intarsia.cli.main import COMMANDS, main
from intarsia.core.errors import Violation, ViolationsError
from intarsia.core.words import counted


def run_process(*words, **options):
    return subprocess.run(
        [sys.executable, *words], check=False, capture_output=True, text=True, timeout=120, **options
    )


def stub(monkeypatch, run):
    """Make `inspect` do something else."""

    def parse(words):
        class Stub:
            pass

        Stub.run = lambda self: run()
        return Stub()

    monkeypatch.setattr(entry, "parse", parse)


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name, capsys):
    assert main([name, "--help"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(f"usage: intarsia {name}")
    assert captured.err == ""


def test_version(capsys):
    import intarsia

    assert main(["--version"]) == 0
    version, sources = capsys.readouterr().out.splitlines()
    assert version == f"intarsia {intarsia.__version__}"
    assert re.fullmatch("sources [0-9a-f]{64}", sources)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["no-such-command"],
        ["inspect"],
        ["inspect", "a", "b"],
        ["inspect", "a", "--no-such-option"],
        ["generate", "demo"],
        ["generate", "demo", "x", "--max-tokens", "many"],
        ["generate", "demo", "x", "--max-tokens", "0"],
        ["generate", "demo", "x", "--temperature", "nan"],
        ["generate", "demo", "x", "--top-p", "1.5"],
        ["generate", "demo", "x", "--seed", "-1"],
        ["generate", "demo", "x", "--stop", ""],
        ["generate", "demo", "x", "--window", "1"],
        ["generate", "demo", "x", "--dtype", "int8"],
        ["generate", "demo", "x", "--device", "no such device"],
        ["convert", "demo"],
        ["convert", "demo", "out", "--csf", "best"],
        ["inspect", "/no/such/folder"],
        ["audit", __file__],
    ],
)
def test_wrong_use_is_exit_code_two(words, capsys):
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err
    assert "Traceback" not in captured.err


def test_errors_are_messages(monkeypatch, capsys):
    violations = [Violation("some-rule", "tensor.a", "this", "that", "do so"), Violation("other", "b")]

    def run():
        raise ViolationsError("folder", violations)

    stub(monkeypatch, run)
    assert main(["inspect", "x"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("intarsia: folder: found 2 violations")
    assert "[some-rule] tensor.a: found this; expected that; do so" in captured.err

    assert main(["inspect", "x", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)["error"]
    assert document["type"] == "ViolationsError"
    assert document["where"] == "folder"
    assert [entry["rule"] for entry in document["violations"]] == ["some-rule", "other"]


def test_messages_cannot_drive_the_terminal(monkeypatch, capsys):
    def run():
        raise ViolationsError("evil\x1b[2Jname", [])

    stub(monkeypatch, run)
    assert main(["inspect", "x"]) == 1
    assert "\x1b" not in capsys.readouterr().err


def test_interrupt(monkeypatch, capsys):
    def run():
        raise KeyboardInterrupt

    stub(monkeypatch, run)
    assert main(["inspect", "x"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_bugs_are_not_hidden(monkeypatch):
    stub(monkeypatch, lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        main(["inspect", "x"])


def test_a_reader_that_goes_away(source):
    """Like `intarsia inspect ... | head -1`: no traceback, a code of its own."""
    code = (
        "import os, sys\n"
        "from intarsia.cli.main import main\n"
        "read, write = os.pipe()\n"
        "os.close(read)\n"
        "os.dup2(write, 1)\n"
        f"sys.exit(main(['inspect', {str(source)!r}]))\n"
    )
    for environment in ({}, {"TERM": "xterm-256color"}, {"TERM": "dumb"}):
        done = run_process("-c", code, env=environment)
        assert done.stderr == ""
        assert done.returncode == 141


def test_nothing_heavy_is_imported_for_help_or_by_the_package():
    code = (
        "import sys, intarsia\n"
        "from intarsia.cli.main import main\n"
        "assert main(['generate', '--help']) == 0\n"
        "heavy = {'torch', 'numpy', 'tokenizers', 'jinja2', 'safetensors', 'triton', 'transformers'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = run_process("-c", code)
    assert done.stderr == "[]\n"


def test_the_package_exports_what_it_lists():
    import intarsia

    for name in intarsia.__all__:
        assert getattr(intarsia, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = intarsia.no_such_name


def test_python_m_intarsia_and_plain_encodings():
    done = run_process("-m", "intarsia", "--version", env={**os.environ, "PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert done.stdout.startswith("intarsia ")


def test_help_says_all_of_the_command_that_is_meant_and_a_line_of_each_in_the_list(capsys):
    assert main(["convert", "--help"]) == 0
    assert "an export that was stopped goes on with --resume" in " ".join(capsys.readouterr().out.split())
    assert main(["--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Write a checkpoint in the formats" in shown
    assert "goes on with --resume" not in shown


def test_values_that_may_be_absent_are_shown_and_refused_as_values(capsys):
    for command in COMMANDS:
        main([command, "--help"])
    assert "None}" not in capsys.readouterr().out
    assert main(["generate", "demo", "x", "--threads", "many"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "NoneType" not in told
    assert "invalid literal for int() with base 10: 'many'" in told


def test_numbers_have_their_nouns():
    assert [counted(n, "shard") for n in (0, 1, 2000)] == ["0 shards", "1 shard", "2,000 shards"]


def test_more_ranks_than_there_are_units_is_said_once(capsys):
    assert main(["plan", "demo", "--tp", "9"]) == 1
    told = capsys.readouterr().out
    assert told.count("[fewer-units]") == 1
    assert "use fewer ranks" in told
    assert main(["plan", "demo", "--tp", "9", "--json"]) == 1
    assert capsys.readouterr().out.count('"fewer-units"') > 99
