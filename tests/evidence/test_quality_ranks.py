"""One rank against several: nearly the same numbers, the same bits each time, and receipts that say so."""

import json
import os
import subprocess
import sys

import msgspec
import pytest
import torch

from intarsia.checkpoint.paths import DEMO
from intarsia.core import receipt as receipts
from intarsia.core.errors import UsageError
from intarsia.core.provenance import code
from intarsia.evidence.errors import RepeatError, ReportError
from intarsia.evidence.forms import tokenizer_of
from intarsia.evidence.quality.capture import capture
from intarsia.evidence.quality.documents import read_corpus
from intarsia.evidence.quality.kld import help_to_score, score_windows
from intarsia.evidence.quality.measure import HELD_OUT, measure_quality
from intarsia.evidence.quality.repeat import check_repeat
from intarsia.evidence.quality.settings import QualitySettings
from intarsia.evidence.quality.windows import WindowPlan, cut_windows
from intarsia.evidence.rerun import rerun
from tests.groups.threads import on_ranks

# Float32 sums in another order move a logit by about 1e-6 of the largest, and a KLD by the square of that.
FLOAT_ERROR = 1e-9
SMALL = ("--tokens", "1x64", "--repeat-windows", "1", "--json")


def run(*words):
    """The command, in processes of its own: exit code, what it printed as JSON, and what it told."""
    done = subprocess.run(
        [sys.executable, "-m", "intarsia", "quality", *words],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Two ranks against one, run once: what was printed, and the receipt."""
    folder = tmp_path_factory.mktemp("compared")
    ended, found, told = run("demo", "--tp", "2", "--report", str(folder), *SMALL)
    assert ended == 0, told
    return found, receipts.read(next(folder.glob("*.json")))


def test_two_ranks_are_within_float_error_of_one(compared):
    found, _ = compared
    kld = found["figures"]["kld"]
    assert 0 < kld["max"] < FLOAT_ERROR  # other bits, so two ranks did run, and nearly the same numbers
    assert found["figures"]["top1"]["differing"] == 0
    assert found["repeat"]["largest_kld"] == found["candidate_repeat"]["largest_kld"] == 0
    assert found["candidate"]["label"] == "demo as stored on 2 ranks"
    assert found["layers"]["suspects"] == 0
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1]
    assert all(rank["machine"]["libraries"]["torch"] == code().libraries["torch"] for rank in found["ranks"])


def test_ranks_run_again(compared):
    """The receipt of two ranks is measured again on two: of all figures the changed one alone differs."""
    _, receipt = compared
    figures = {**receipt.results["figures"], "positions": 63}
    changed = msgspec.structs.replace(receipt, results={**receipt.results, "figures": figures})
    assert [violation.where for violation in rerun(changed)] == ["figures.positions"]
    gone = msgspec.structs.replace(receipt, settings={**receipt.settings, "tokens": "900x4096"})
    with pytest.raises(ReportError, match="enough for 12 windows"):
        rerun(gone)


def test_the_same_count_gives_the_same_bits():
    code, found, told = run("demo", "--tp", "2", "--base-tp", "2", "--no-layers", *SMALL)
    assert code == 0, told
    assert found["figures"]["kld"]["max"] == found["figures"]["kld"]["min"] == 0
    assert found["figures"]["nll"]["difference"] == 0
    assert found["base"]["label"] == "demo as stored on 2 ranks"


@pytest.mark.parametrize("words", [("--tp", "2", "--base-tp", "3"), ("--tp", "65"), ("--base-tp", "2")])
def test_counts_that_cannot_be_meant(words):
    code, _, told = run("demo", "--manifest", "spark", *words)
    assert code == 2
    assert "tp: found " in told


def test_a_text_too_short_is_told_once_and_ends_all():
    code, found, told = run("demo", "--tp", "2", "--tokens", "900x4096", "--json")
    assert code == 2
    assert found["error"]["type"] == "TextError"
    assert told.count("enough for") == 1


def test_every_rank_has_part_in_the_logits(demo):
    """Three ranks: every rank's hidden rows and logits are the same bits, and close to one rank's."""
    windows = cut_windows(read_corpus(HELD_OUT, tokenizer_of(demo)), WindowPlan(1, 64))
    alone = capture(demo.load(), windows)

    def work(group):
        model = demo.load(group=group)
        found = capture(model, windows, watched=1)
        repeat = check_repeat(found, capture(model, windows, watched=1), windows, model.config, "candidate")
        assert repeat.largest_kld == 0
        if group.rank:
            help_to_score([found], windows)
            return found.hidden[0], None
        return found.hidden[0], list(score_windows(alone, found, windows))

    results = on_ranks(3, work)
    assert all(torch.equal(hidden, results[0][0]) for hidden, _ in results)
    (scores,) = results[0][1]
    assert 0 < abs(scores.kld).max() < FLOAT_ERROR


def test_ranks_that_do_not_repeat_are_refused(demo, monkeypatch):
    from intarsia.groups.torch_group import TorchGroup

    windows = cut_windows(read_corpus(HELD_OUT, tokenizer_of(demo)), WindowPlan(1, 32))
    plain, calls = TorchGroup.sum_in_rank_order, []

    def unsteady(self, partial, rows=None):
        calls.append(1)
        # There are 16 sums a pass on each of two ranks.
        return plain(self, partial, rows) * (1 + 1e-6 * (len(calls) > 40))

    monkeypatch.setattr(TorchGroup, "sum_in_rank_order", unsteady)

    def work(group):
        model = demo.load(group=group)
        pair = [capture(model, windows, watched=1) for _ in range(2)]
        check_repeat(pair[0], pair[1], windows, model.config, "candidate")

    with pytest.raises(RepeatError, match="second run of the candidate"):
        on_ranks(2, work)


def test_one_process_alone_takes_no_ranks(demo):
    with pytest.raises(UsageError, match="measure_on"):
        measure_quality(demo, demo, settings=QualitySettings(tp=2))
    assert DEMO.is_dir()
