"""Settings: defaults, a file, flags, and the reference page that is written from them."""

from dataclasses import fields
from pathlib import Path

import pytest

from intarsia.cli.main import main
from intarsia.core.errors import UsageError
from intarsia.server import start
from intarsia.server.options import NAMES, options, read_file, reference_page, settings_from
from intarsia.server.settings import ServerSettings

PAGE = Path(__file__).parents[2] / "docs" / "serve-reference.md"


def test_the_reference_page_is_current():
    assert PAGE.read_text() == reference_page(), (
        "run: python -m intarsia.server.options > docs/serve-reference.md"
    )


def test_every_setting_is_an_option_and_few_are_flags():
    told = options()
    assert {option.field for option in told} == {field.name for field in fields(ServerSettings)}
    assert len({option.name for option in told}) == len(told)
    assert all(option.help for option in told)
    assert sum(option.flag for option in told) < 30
    assert set(NAMES) <= {option.field for option in told}


def test_a_file_speaks_both_names(tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text(
        'max-model-len = 128\nmax_num_seqs = 2\nserved-model-name = ["a", "b"]\nidle_timeout = 5\nqueue = 3\n'
    )
    assert read_file(file) == {
        "window": 128,
        "streams": 2,
        "served_model_name": ("a", "b"),
        "idle_timeout": 5.0,
        "queue": 3,
    }


def test_a_flag_wins_over_the_file(tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text("port = 1\nqueue = 3\n")
    settings = settings_from(file, {"port": 2, "host": None})
    assert (settings.port, settings.queue, settings.host) == (2, 3, "127.0.0.1")
    assert settings_from(None, {}) == ServerSettings()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("colour = 1", "colour"),
        ("port = '1'", "port"),
        ("port = true", "port"),
        ("metrics-open = 1", "metrics-open"),
        ("port = 1\nPORT = 2", "PORT"),
        ("window = 5\nmax-model-len = 6", "max-model-len"),
        ("served-model-name = [1]", "served-model-name"),
        ("port = ", "Invalid value"),
    ],
)
def test_a_bad_file_is_refused_by_name(tmp_path, text, named):
    file = tmp_path / "serve.toml"
    file.write_text(text)
    with pytest.raises(UsageError, match=named):
        read_file(file)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("port", 70000),
        ("port", True),
        ("host", ""),
        ("max_connections", 0),
        ("idle_timeout", 0),
        ("drain_timeout", float("nan")),
        ("served_model_name", ["a"]),
        ("served_model_name", ("",)),
        ("metrics_open", 1),
        ("api_key_file", Path("x")),
        ("max_body_bytes", 1),
        ("streams", 0),
    ],
)
def test_settings_check_themselves(field, value):
    with pytest.raises(UsageError, match=field):
        ServerSettings(**{field: value})


@pytest.mark.parametrize(
    ("host", "inside"), [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False)]
)
def test_loopback(host, inside):
    assert ServerSettings(host=host).loopback is inside


@pytest.fixture
def started(monkeypatch):
    """What the command would have served."""
    seen = []
    monkeypatch.setattr(start, "serve", lambda source, settings, **_: seen.append((source, settings)))
    return seen


def test_flags_of_the_command(started):
    words = ["--port", "0", "--max-num-seqs", "3", "--idle-timeout", "5", "--metrics-open"]
    words += ["--served-model-name", "a", "--served-model-name", "b", "--max-model-len", "256"]
    assert main(["serve", "demo", *words]) == 0
    expected = ServerSettings(
        port=0, streams=3, idle_timeout=5.0, metrics_open=True, served_model_name=("a", "b"), window=256
    )
    assert started == [("demo", expected)]


def test_the_command_reads_the_file_and_says_what_is_wrong(started, tmp_path, capsys):
    file = tmp_path / "serve.toml"
    file.write_text("port = 0\nmetrics-open = true\n")
    assert main(["serve", "demo", "--config", str(file), "--queue", "9"]) == 0
    assert started == [("demo", ServerSettings(port=0, metrics_open=True, queue=9))]
    for words in (
        ["--port", "70000"],
        ["--colour", "red"],
        ["--config", str(tmp_path / "none")],
        ["--queue", "x"],
    ):
        assert main(["serve", "demo", *words]) == 2
    capsys.readouterr()


def test_every_flag_is_in_the_help(capsys):
    assert main(["serve", "--help"]) == 0
    told = capsys.readouterr().out
    assert all(f"--{option.name}" in told for option in options() if option.flag)
    assert "--header-timeout" not in told
