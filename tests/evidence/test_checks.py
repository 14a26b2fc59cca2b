"""The engine checks pass where nothing is wrong, fail where something is, and never pass on an empty cell."""

import json
from contextlib import contextmanager

import pytest
import torch

from intarsia.cli.main import main
from intarsia.evidence import checks
from intarsia.evidence.checks import CHECKS, CheckReport, Coverage, check_shared
from intarsia.evidence.checks.bench import Bench
from intarsia.evidence.checks.cover import cover_streams, cover_widths
from intarsia.evidence.checks.shared import partitions
from tests.engine.hash_network import HashNetwork


class Told:
    """Progress that keeps what it was told: name of a phase -> its units, and how many were done."""

    def __init__(self):
        self.phases = {}

    @contextmanager
    def phase(self, name, total, unit="bytes"):
        assert unit == "cells"
        self.phases[name] = [total, 0]
        yield self

    def advance(self, count):
        self.phases[list(self.phases)[-1]][1] += count


@pytest.mark.parametrize(("name", "parts"), [("lanes-cover", 6), ("lanes-concurrent", 1), ("shared", 1)])
def test_every_cell_is_taken_and_told_and_nothing_differs(name, parts):
    network, told = HashNetwork(), Told()
    report = CHECKS[name](network, told)
    assert report.failures == ()
    assert report.empty == ()
    assert report.passed
    assert network.blind == 0
    assert len(told.phases) == parts
    assert all(phase.startswith(name) and done == total > 0 for phase, (total, done) in told.phases.items())
    assert sum(total for total, _ in told.phases.values()) == len(report.cells)


def test_the_command_tells_how_far_a_check_is(monkeypatch, capsys):
    monkeypatch.setattr("intarsia.cli.progress.EVERY_SECONDS", 0)
    monkeypatch.setattr("intarsia.api.load", lambda *arguments, **options: HashNetwork())
    assert main(["check", "shared", "demo"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("shared: 1 cells of 74 cells")
    assert lines[-1].startswith("shared: 74 cells of 74 cells")


class Leaky(HashNetwork):
    """Rows see whether others are in the step."""

    def hidden(self, rows, state):
        out = super().hidden(rows, state)
        if len(rows.starts) > 2:
            out[:, 0] += 1
        return out


class Forgetful(HashNetwork):
    """A window of more than three rows does not write its last row's page."""

    def hidden(self, rows, state):
        before = state.latents.clone()
        out = super().hidden(rows, state)
        for segment in rows.segments():
            if segment.recurrent and segment.count > 3:
                page, offset = divmod(segment.end - 1, state.settings.page)
                number = int(state.page_table[segment.stream, page])
                state.latents[0, number, offset] = before[0, number, offset]
        return out


def test_rows_that_see_their_neighbours_are_found():
    report = check_shared(Leaky())
    assert not report.passed
    assert {failure.partition(" ")[0] for failure in report.failures} >= {"hidden", "logits"}


@pytest.mark.parametrize(("network", "part"), [(Leaky, cover_streams), (Forgetful, cover_widths)])
def test_replies_that_differ_are_found(network, part):
    coverage = Coverage("part")
    bench = Bench(network(), coverage, window=512)
    part(bench)
    assert any("tokens of" in failure for failure in coverage.report().failures)


def test_an_empty_cell_fails_a_check():
    coverage = Coverage("some")
    coverage.expect("widths", (1, 2))
    coverage.took("widths", 1)
    coverage.took("widths", 3)
    coverage.compare("tokens", [1], [1], 1)
    assert [cell.name for cell in coverage.report().empty] == ["2"]
    assert not coverage.report().passed
    coverage.took("widths", 2)
    assert coverage.report().passed
    coverage.compare("tokens", [1], [2], 1)
    assert coverage.report().failures == ("tokens: found [1]; expected [2]",)


def test_all_splits_of_eight_rows():
    splits = list(partitions(8))
    assert len(splits) == len(set(splits)) == 22
    assert all(sum(split) == 8 for split in splits)


def test_the_command_prints_the_table_and_fails_with_the_check(monkeypatch, capsys):
    coverage = Coverage("shared")
    coverage.expect("splits", ("4+4", "8"))
    coverage.took("splits", "8")
    coverage.compare("rows", 1, 1, 8)
    reports: list[CheckReport] = [coverage.report()]
    monkeypatch.setitem(checks.CHECKS, "shared", lambda model, progress: reports[-1])
    monkeypatch.setattr("intarsia.api.load", lambda *arguments, **options: torch.nn.Identity())
    assert main(["check", "shared", "demo"]) == 1
    assert "4+4" in capsys.readouterr().out
    coverage.took("splits", "4+4")
    reports.append(coverage.report())
    assert main(["check", "shared", "demo", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["passed"], told["empty"], told["compared"]) == (True, [], 8)


@pytest.mark.parametrize(("words", "threads"), [((), 1), (("--threads", "3"), 3)])
def test_the_command_computes_with_one_thread_for_a_small_network(monkeypatch, words, threads):
    before = torch.get_num_threads()
    seen = []
    monkeypatch.setitem(checks.CHECKS, "shared", lambda model, progress: Coverage("shared").report())
    monkeypatch.setattr("intarsia.api.load", lambda *_, **__: seen.append(torch.get_num_threads()))
    torch.set_num_threads(2)
    try:
        main(["check", "shared", "demo", *words])
    finally:
        torch.set_num_threads(before)
    assert seen == [threads]
