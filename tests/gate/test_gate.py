"""The gate passes what is right and sees every fault: of tensors, and of the loader's own cut."""

import json
from dataclasses import replace

import pytest

from intarsia.cli.main import main
from intarsia.core.errors import UsageError
from intarsia.evidence import loader_gate
from intarsia.evidence.loader_faults import loader_faults
from intarsia.evidence.loader_gate import run_gate
from intarsia.gate.compare import Cell
from intarsia.gate.mutations import mutations
from intarsia.loading import shares
from intarsia.loading.export import convert


def test_every_kind_of_cut_is_compared_and_every_fault_seen(mixed):
    report = run_gate(mixed, [1, 2, 3], mutate=True)
    assert report.ok
    assert not report.differing
    assert not report.missed
    for coverage in report.coverage.values():
        assert coverage.exist == coverage.compared
    cells = {(cell.form, cell.axis, cell.aligned) for cell in report.coverage[3].exist}
    for axis in ("rows", "columns"):
        assert ("FP8_PB_WO", axis, False) in cells
        assert ("MXFP8", axis, True) in cells
    absent = {name for name, count in report.seen.items() if not count and "tiles" not in name}
    assert absent == {"scale of a whole matrix off by a bit"}
    assert len(report.seen) - len(absent) >= 35


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_shares_begin_inside_blocks_at_every_number_of_ranks(uneven, ranks):
    report = run_gate(uneven, [ranks], mutate=True)
    assert report.ok
    cells = report.coverage[ranks].exist
    assert cells == report.coverage[ranks].compared
    for axis in ("rows", "columns"):
        assert Cell("FP8_PB_WO", axis, False) in cells
    origins = {finding.origin for finding in report.findings}
    assert origins >= {(64, 0), (0, 64)}


def test_formats_that_no_recipe_names_pass_and_their_faults_are_seen(one_format):
    name, checkpoint = one_format
    report = run_gate(checkpoint, [1, 3, 4], mutate=True)
    assert report.ok
    assert {(cell.form, cell.axis) for cell in report.coverage[3].exist} >= {
        (name, "rows"),
        (name, "columns"),
    }
    assert report.seen["elements shifted by a row"]
    assert report.seen["scale of a whole matrix off by a bit" if name == "FP8" else "scales shifted by a row"]
    if name == "MXFP4":
        assert report.seen["nibbles in the other order"]


def test_a_tensor_that_is_in_no_weight_fails_the_gate(mixed, monkeypatch):
    dropped = "layers.0.self_attn.q_proj"

    def forgetful(plan, rank, ranks):
        share = shares.share_of(plan, rank, ranks)
        return replace(share, weights=tuple(w for w in share.weights if w.module.name != dropped))

    monkeypatch.setattr(loader_gate, "share_of", forgetful)
    report = run_gate(mixed, [1])
    assert not report.differing
    assert {name.rpartition(".")[0] for name in report.unread} == {"model.language_model." + dropped}
    assert not report.ok


def test_partial_outputs_of_both_attentions_are_checked(mixed):
    report = run_gate(mixed, [3])
    names = {check.name for check in report.outputs}
    assert {"layers.0.self_attn.o_proj", "layers.3.self_attn.o_proj"} <= names
    assert all(check.ok for check in report.outputs)
    assert max(check.share_of_bound for check in report.outputs) > 0


def test_the_spark_form_passes(source, tmp_path):
    out = convert(source.path, tmp_path / "spark", recipe="spark")
    assert run_gate(out, [1, 3], mutate=True).ok


def test_faults_are_many_and_have_names_of_their_own():
    names = [mutation.name for mutation in mutations()]
    assert len(names) == len(set(names)) >= 20


@pytest.mark.parametrize("mixed", ["none"], indirect=True)
@pytest.mark.parametrize("fault", loader_faults(), ids=lambda fault: fault.name)
def test_a_loader_with_a_fault_in_its_cut_does_not_pass(mixed, fault, monkeypatch):
    def faulty(plan, rank, ranks):
        share = shares.share_of(plan, rank, ranks)
        return replace(share, weights=tuple(fault.change(weight) for weight in share.weights))

    monkeypatch.setattr(loader_gate, "share_of", faulty)
    report = run_gate(mixed, [3], layers=[3])
    assert report.differing
    assert not report.ok


@pytest.mark.parametrize("mixed", ["none"], indirect=True)
def test_another_ranks_share_is_found(mixed, monkeypatch):
    monkeypatch.setattr(
        loader_gate, "share_of", lambda plan, rank, ranks: shares.share_of(plan, (rank + 1) % ranks, ranks)
    )
    differing = run_gate(mixed, [3], layers=[3]).differing
    assert {finding.rank for finding in differing} == {0, 1, 2}


@pytest.mark.parametrize("mixed", ["block"], indirect=True)
def test_the_command_tells_what_was_compared(mixed, capsys):
    assert main(["gate", str(mixed.path), "--tp", "3", "--layers", "3", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ok"]
    row = next(row for row in document["weights"] if row["name"] == "layers.3.mlp.shared_experts.down")
    assert (row["format"], row["axis"], row["aligned"]) == ("FP8_PB_WO", "columns", False)
    assert (row["share"], row["origin"], row["differences"]) == ([0, 64], [0, 0], [])
    assert main(["gate", str(mixed.path), "--tp", "2,3", "--layers", "3"]) == 0
    text = capsys.readouterr().out
    assert "inside a block" in text
    assert text.endswith("fine\n")


@pytest.mark.parametrize("mixed", ["none"], indirect=True)
def test_a_difference_ends_the_command_with_one(mixed, monkeypatch, capsys):
    def faulty(plan, rank, ranks):
        share = shares.share_of(plan, rank, ranks)
        return replace(share, weights=tuple(replace(weight, origin=(0, 0)) for weight in share.weights))

    monkeypatch.setattr(loader_gate, "share_of", faulty)
    assert main(["gate", str(mixed.path), "--tp", "3", "--formats", "FP8_PB_WO", "--layers", "3"]) == 1
    text = capsys.readouterr().out
    assert "origin: found (0, 0); expected (64, 0)" in text
    assert text.endswith("FAILED\n")


def test_wrong_words_are_wrong_use(source, capsys):
    for words in (["--tp", "0"], ["--tp", "two"], ["--layers", "1-"], ["--formats", "NVFP5"]):
        assert main(["gate", str(source.path), *words]) == 2
    with pytest.raises(UsageError, match="no weight"):
        run_gate(source, [1], layers=[99])
