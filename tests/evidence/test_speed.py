"""Speed runs: their design, their samples, and comparisons that are refused or made."""

import copy
import math

import pytest

from intarsia.core.errors import UsageError
from intarsia.evidence.errors import IncomparableError, OverlapError
from intarsia.evidence.forms import open_form
from intarsia.evidence.speed.cells import Cell, cells_of, time_cell
from intarsia.evidence.speed.compare import compare_runs, differences, drafting
from intarsia.evidence.speed.floor import step_bytes
from intarsia.evidence.speed.run import measure_speed
from intarsia.evidence.speed.settings import SpeedSettings


def sample(cell, number, seconds, **other):
    return {
        "cell": cell,
        "round": number,
        "seconds": seconds,
        "tokens": 10,
        "warm_up": number < 0,
        "cached_tokens": 0,
        "file_cache": "weights in memory",
        "steps": 10,
        "drafted": 0,
        "accepted": 0,
    } | other


def run(samples, session="s"):
    return {
        "label": "x",
        "settings": {"rounds": 3, "seed": 0},
        "machine": {"processor": "p", "libraries": {"torch": "1"}},
        "text_sha256": "t",
        "session": session,
        "samples": samples,
        "floors": [],
    }


@pytest.fixture(scope="module")
def pair(demo):
    settings = SpeedSettings(prompts=(64, 9999), streams=(2,), decode_tokens=4, rounds=2, drafts=1)
    return measure_speed([demo, open_form("demo", "spark")], settings)


def test_forms_take_turns_and_the_first_comes_once_more(pair):
    a, b = pair
    orders = {
        run.form.label: [
            (sample.order, sample.round, sample.warm_up)
            for sample in run.samples
            if sample.cell.startswith("prompt")
        ]
        for run in pair
    }
    assert orders["demo as stored"] == [(0, -1, True), (2, 0, False), (4, 1, False), (6, 2, False)]
    assert orders["demo by spark"] == [(1, -1, True), (3, 0, False), (5, 1, False)]
    assert a.session == b.session
    assert a.not_run == ("prompt of 9,999 tokens: the model's window is 4,096",)
    assert all(sample.cached_tokens == 0 and sample.seconds > 0 for run in pair for sample in run.samples)


def test_samples_count_what_was_done(pair):
    plain, drafted = (
        [s for s in pair[0].samples if s.cell == f"decode, 2 streams{more}"] for more in ("", ", 1 drafts")
    )
    # Two streams side by side: a token each a step, both four.
    assert {(s.tokens, s.steps, s.drafted) for s in plain} == {(8, 4, 0)}
    assert all(s.drafted >= s.accepted for s in drafted)
    assert sum(s.drafted for s in drafted) > 0
    found = drafting(pair[0].as_dict())
    assert [row.cell for row in found] == ["decode, 2 streams, 1 drafts"]


def test_streams_that_do_not_overlap_are_refused(demo, monkeypatch):
    monkeypatch.setattr("intarsia.evidence.speed.cells.SLACK", 0)
    model = demo.load()
    with pytest.raises(OverlapError, match="ended early"):
        time_cell(model, Cell("decode", 2), [5] * 200, SpeedSettings(decode_tokens=4))


def test_cells_without_an_mtp_layer_are_left_out():
    cells, left_out = cells_of(SpeedSettings(prompts=(), streams=(1,)), 100, can_draft=False)
    assert cells == [Cell("decode", 1)]
    assert left_out == ["drafted cells: the checkpoint has no MTP layer"]


def test_a_step_reads_more_experts_for_more_streams(demo):
    model = demo.load()
    one, eight, many = (step_bytes(model, streams) for streams in (1, 8, 10_000))
    assert one < eight < many
    experts = sum(
        weight.nbytes
        for layer in model.weights.layers
        if hasattr(layer.block.mlp, "experts")
        for weight in (layer.block.mlp.experts.gate_up, layer.block.mlp.experts.down)
    )
    # 2 of 12 experts for one row, all of them for very many
    assert many - one == pytest.approx(experts * 10 / 12, rel=1e-6)


def test_changes_are_paired_and_bracketed():
    # The machine slows down by 10 % a sample; B is 20 % faster than A everywhere.
    a = run([sample("c", number, 1.1 ** (2 * number)) for number in range(4)])
    b = run([sample("c", number, 1.1 ** (2 * number + 1) / 1.2) for number in range(3)])
    (row,) = compare_runs(a, b)
    assert row.pairs == 3
    assert row.change == pytest.approx(0.2)
    assert row.interval == pytest.approx((0.2, 0.2))
    assert row.drift == pytest.approx(1.1**-6 - 1)
    assert row.verdict == "within the drift of A"
    (apart,) = compare_runs(a, run(b["samples"], session="other"))
    assert apart.change == pytest.approx(1.2 / 1.1 - 1)


def test_noise_is_no_difference():
    a = run([sample("c", number, 1 + 0.1 * math.sin(9 * number)) for number in range(8)])
    b = run([sample("c", number, 1 + 0.1 * math.sin(7 * number + 2)) for number in range(7)])
    (row,) = compare_runs(a, b)
    assert row.verdict == "no difference shown"
    assert row.interval[0] < 0 < row.interval[1]


def test_warm_ups_do_not_count():
    a = run([sample("c", -1, 100.0), sample("c", 0, 1.0), sample("c", 1, 1.0)])
    (row,) = compare_runs(a, run(a["samples"][1:]))
    assert row.change == 0
    assert row.a_tokens_per_second == 10


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("settings.rounds", lambda b: b["settings"].update(rounds=4)),
        ("settings.drafts", lambda b: b["settings"].update(drafts=4)),
        ("machine.processor", lambda b: b["machine"].update(processor="q")),
        ("machine.libraries.torch", lambda b: b["machine"]["libraries"].update(torch="2")),
        ("text_sha256", lambda b: b.update(text_sha256="u")),
        ("c: cached_tokens", lambda b: b["samples"][0].update(cached_tokens=64)),
        ("c: file_cache", lambda b: b["samples"][0].update(file_cache="cold")),
        ("cells", lambda b: b["samples"].append(sample("d", 0, 1.0))),
        ("c: rounds", lambda b: [s.update(round=s["round"] + 9) for s in b["samples"]]),
    ],
)
def test_runs_that_differ_are_refused_and_the_field_is_named(field, change):
    a = run([sample("c", 0, 1.0), sample("c", 1, 1.0)])
    b = copy.deepcopy(a)
    assert differences(a, b) == []
    change(b)
    with pytest.raises(IncomparableError) as refused:
        compare_runs(a, b)
    assert [violation.where for violation in refused.value.violations] == [field]


def test_all_differing_fields_are_named_together():
    a = run([sample("c", 0, 1.0)])
    b = copy.deepcopy(a)
    b["settings"]["rounds"] = 9
    b["machine"]["processor"] = "q"
    b["samples"][0]["cached_tokens"] = 1
    assert len(differences(a, b)) == 3


def test_the_break_even_of_drafting():
    # A drafted step takes 1.5 times a plain one and gives 2 tokens: it pays from 1.5 tokens on.
    plain = [sample("decode, 1 stream", 0, 1.0)]
    drafted = [sample("decode, 1 stream, 3 drafts", 0, 0.75, steps=5, drafted=15, accepted=5)]
    (row,) = drafting(run(plain + drafted))
    assert (row.tokens_per_step, row.break_even) == pytest.approx((2.0, 1.5))
    assert row.acceptance == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompts": (1,)},
        {"streams": (0,)},
        {"rounds": 1},
        {"prompts": (), "streams": ()},
        {"streams": (2, 2)},
    ],
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(UsageError):
        SpeedSettings(**wrong)
