"""Which configurations a network's kernels run with, and where they are from."""

import itertools
import json

import pytest
import torch

import intarsia
from intarsia.cli.main import main
from intarsia.kernels import choice, tuning
from intarsia.kernels.tuning import Found, Site, Table, configurations
from intarsia.kernels.tuning.use import NONE_THERE, State
from intarsia.loading.weights import prepared
from intarsia.models.glm5_next.configured import configuration_rows

GPU = torch.device("cuda", 0)
SITE = Site("linear", ("BF16",), (768, 128, 1), 16)


@pytest.fixture
def a_hopper(monkeypatch):
    monkeypatch.setattr(choice, "no_triton", lambda device: "")
    monkeypatch.setattr(choice, "no_gluon", lambda device: "")


def table() -> Table:
    other = configurations("linear").candidates(SITE)[1]
    return Table("tuned.json", "2026-11-30T08:00:00Z", {SITE: Found(other, 3.5, 0.1, 4.0, 0.1)})


def test_rows_cover_every_count_once(a_hopper):
    rows = configuration_rows(prepared("demo"), GPU, "bfloat16", None)
    by_site = {}
    for row in rows:
        assert row.origin == "default"
        by_site.setdefault((row.operation, row.formats, row.shape), []).append(row)
    assert ("linear", ("BF16",), (768, 128, 1)) in by_site
    for mine in by_site.values():
        assert (mine[0].least, mine[-1].most) == (1, None)
        for before, after in itertools.pairwise(mine):
            assert after.least == before.most + 1


def test_what_was_tuned_says_so(a_hopper):
    rows = configuration_rows(prepared("demo"), GPU, "bfloat16", table())
    (tuned,) = (row for row in rows if row.tuned)
    assert (tuned.shape, tuned.least, tuned.most) == (SITE.shape, 9, 16)
    assert tuned.origin == "tuned: 3.50 us, the default 4.00"
    assert len(rows) == len(configuration_rows(prepared("demo"), GPU, "bfloat16", None)) + 1


@pytest.mark.parametrize(("device", "dtype"), [(torch.device("cpu"), "bfloat16"), (GPU, "float32")])
def test_other_kernels_have_no_choice(device, dtype, monkeypatch):
    if device == GPU:
        monkeypatch.setattr(choice, "no_triton", lambda device: "")
        monkeypatch.setattr(choice, "no_gluon", lambda device: "")
    assert configuration_rows(prepared("demo"), device, dtype, table()) == ()


def test_the_command_tells_them(a_hopper, capsys, monkeypatch):
    monkeypatch.setattr("intarsia.api.usable_device", lambda device: GPU)
    monkeypatch.setattr("intarsia.api.look", lambda setting, device: State("tuned.json", table()))
    words = ["generate", "demo", "Once", "--device", "cuda", "--dtype", "bfloat16", "--explain"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "configurations of kernels" in shown
    assert "kernels tuned 2026-11-30T08:00:00Z, 1 sites: tuned.json" in " ".join(shown.split())
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["origin"] for row in told["configurations"] if row["tuned"]] == [
        "tuned: 3.50 us, the default 4.00"
    ]
    assert tuning.installed(GPU) is None  # explaining puts nothing to use


def test_a_named_file_that_does_not_hold_is_an_error(tmp_path, capsys):
    file = tmp_path / "tuned.json"
    file.write_text("{}")
    assert main(["generate", "demo", "Once", "--tuning", str(file), "--explain"]) == 1
    assert "tuned.json" in capsys.readouterr().err
    assert main(["generate", "demo", "Once", "--tuning", str(file), "--max-tokens", "1"]) == 1
    assert main(["generate", "demo", "Once", "--tuning", "off", "--max-tokens", "1"]) == 0


def test_a_devices_own_file_that_does_not_hold_is_warned_of(monkeypatch, caplog):
    state = State("tuned.json", reason="[other-kernels] sources: found abc; expected def")
    monkeypatch.setattr("intarsia.api.use", lambda setting, device: state)
    intarsia.load("demo")
    assert "tuned.json: [other-kernels]" in caplog.text
    caplog.clear()
    monkeypatch.setattr("intarsia.api.use", lambda setting, device: State("tuned.json", reason=NONE_THERE))
    intarsia.load("demo")
    assert caplog.text == ""
