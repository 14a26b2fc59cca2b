"""The gate passes what is right and sees every fault: of tensors, and of the loader's own cut."""

import json
from dataclasses import replace

import pytest

from intarsia.cli.main import main
from intarsia.core.errors import UsageError
from intarsia.evidence import loader_gate
from intarsia.evidence.loader_gate import run_gate
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
    absent = {name for name, count in report.seen.items() if not count}
    assert not absent
    assert len(report.seen) >= 25


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


# Faults of the loader: what its cut says, changed.
def _shift(field, by):
    def change(region):
        starts = list(region.starts)
        if field == "rows" and starts and starts[0] >= by:
            starts[0] -= by
        if field == "columns" and len(starts) > 1 and starts[1] >= by:
            starts[1] -= by
        return replace(region, starts=tuple(starts))

    return change


def _regions(arranged, change, suffixes):
    regions = {
        suffix: change(region) if suffix in suffixes else region
        for suffix, region in (arranged.regions or {}).items()
    }
    return replace(arranged, regions=regions) if arranged.regions else arranged


LOADER_FAULTS = {
    "scale rows one band too early": lambda a: _regions(a, _shift("rows", 1), ["weight_scale"]),
    "element rows one too early": lambda a: _regions(a, _shift("rows", 1), ["weight"]),
    "element columns one too early": lambda a: _regions(a, _shift("columns", 1), ["weight"]),
    "origin dropped": lambda a: replace(a, origin=(0, 0)),
    "parts swapped": lambda a: replace(
        a, pieces=tuple(replace(p, part=a.module.parts - 1 - p.part) for p in a.pieces)
    ),
    "experts swapped": lambda a: (
        replace(a, pieces=tuple(replace(p, expert=p.expert ^ 1) for p in a.pieces))
        if a.module.stack == "experts"
        else a
    ),
}


@pytest.mark.parametrize("mixed", ["none"], indirect=True)
@pytest.mark.parametrize("fault", LOADER_FAULTS)
def test_a_fault_in_the_loaders_cut_is_found(mixed, fault, monkeypatch):
    def faulty(plan, rank, ranks):
        share = shares.share_of(plan, rank, ranks)
        return replace(share, weights=tuple(LOADER_FAULTS[fault](weight) for weight in share.weights))

    monkeypatch.setattr(loader_gate, "share_of", faulty)
    report = run_gate(mixed, [3], layers=[3])
    assert report.differing, fault
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
