"""The command bench kernels, as far as it goes without a GPU, and what it prints of planted rows."""

import json
import os
import signal
import time
from dataclasses import replace

import pytest
import torch

from intarsia.cli import bench_kernels
from intarsia.cli.main import main
from intarsia.evidence.kernels import run as kernels_run
from intarsia.evidence.kernels.ahead import Compiled
from intarsia.evidence.kernels.run import INTERRUPTED
from tests.evidence.test_kernels_aims import planted


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--device", "cpu"], "a CUDA device of this machine"),
        (["--only"], "only"),
        (["--only", "speed"], "speed"),
        (["--rows", "0"], "rows"),
        (["--report", __file__], "report"),
    ],
)
def test_wrong_use(words, reason, capsys):
    assert main(["bench", "kernels", *words]) == 2
    assert reason in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys):
    assert main(["bench", "kernels", "--only", "linear", "--json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert "0 CUDA devices" in answer["error"]["found"]


def test_one_table_the_aims_and_a_receipt(tmp_path, capsys, monkeypatch):
    run = planted()

    def measured(settings, told, *, progress):
        told(run.rows[0])
        return run

    monkeypatch.setattr(kernels_run, "measure_kernels", measured)
    assert main(["bench", "kernels", "--report", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert "KDA o MXFP8" in shown.out
    assert "the same with CSF scales read inside" in shown.out
    assert "linear: KDA o MXFP8, 8 rows: 11.0 us, floor 8.2, cuBLAS on BF16 23.0" in shown.err
    assert "the aims are of one H200, and this is planted" in shown.err
    assert main(["receipt", "verify", str(tmp_path / "kernels.json")]) == 0


def test_one_document_and_a_failure(capsys, monkeypatch):
    run = planted(failed={"kda": "MemoryError: full"})
    monkeypatch.setattr(kernels_run, "measure_kernels", lambda settings, told, *, progress: run)
    assert main(["bench", "kernels", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert [row["us"] for row in document["rows"]] == [row.us for row in run.rows]
    assert document["failed"] == {"kda": "MemoryError: full"}


def test_rows_without_peers_say_nothing_of_them(capsys):
    bench_kernels.tell(planted().rows[-1])
    assert capsys.readouterr().err.endswith("floor 10.0\n")


def test_a_run_that_is_told_to_end_keeps_what_was_timed(tmp_path, capsys, monkeypatch):
    def measured(settings, told, *, progress):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        except KeyboardInterrupt:
            return replace(planted(), interrupted=True, skipped={"the rest of kda": INTERRUPTED})
        raise AssertionError("not told")

    monkeypatch.setattr(kernels_run, "measure_kernels", measured)
    before = signal.getsignal(signal.SIGTERM)
    assert main(["bench", "kernels", "--report", str(tmp_path)]) == 130
    assert signal.getsignal(signal.SIGTERM) is before
    assert "the rest of kda was not timed: the run was interrupted" in capsys.readouterr().err
    kept = json.loads((tmp_path / "kernels.json").read_text())
    assert kept["results"]["interrupted"]
    assert kept["results"]["rows"]


def test_where_the_time_went_is_told(capsys):
    ahead = Compiled(21.5, 16, 50, {"part 1 of 2 of small": "OSError: full"})
    bench_kernels.show(replace(planted(), ahead=ahead, seconds={"compiling ahead": 21.5, "timing": 30.0}))
    told = "compiling ahead 21.5 s (50 parts in 16 processes), timing 30.0 s; part 1 of 2 of small was not"
    assert told in capsys.readouterr().err
