"""A run of timed operations: what fails, is not asked for or comes too late is named and the rest kept."""

import time
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from intarsia.core.errors import UsageError
from intarsia.evidence.errors import NumbersError, TimeUpError
from intarsia.evidence.kernels import experts, hyper, storing
from intarsia.evidence.kernels import run as kernels_run
from intarsia.evidence.kernels.ahead import Compiled
from intarsia.evidence.kernels.operations import MEASURES
from intarsia.evidence.kernels.run import INTERRUPTED, limited, measure_kernels, run_parts
from intarsia.evidence.kernels.settings import OPERATIONS, KernelsSettings
from intarsia.evidence.receipts import kernels_receipt
from intarsia.families.glm5_next.config import Glm5NextConfig
from intarsia.kernels import choice
from tests.evidence.small_kernels import RATES, Clock, cases, small_bench
from tests.evidence.test_synthetic import small_geometry


def test_bytes_are_carried_and_no_kernel_expands_scales_on_a_cpu():
    bench = small_bench()
    storing.measure(bench, batch=2, parts=6, part_bytes=5 << 10)
    assert {row.rows for row in bench.table.rows} == {6}
    assert bench.table.rows[0].floor_us == pytest.approx(2 * 6 * (5 << 10) / 1e3)
    assert set(storing.CODECS) <= set(bench.skipped)


def test_variants_are_timed_where_asked_for_and_able():
    bench = small_bench()
    bench.variants = True
    assert bench.variant("triton", choice.TRITON, [lambda: None]) == {"triton": 3.0}
    with choice.forced(choice.REFERENCE):
        case = choice.Case("linear", ("MXFP8",), torch.float32, torch.device("cpu"), (64, 64))
        assert bench.variant("plain", choice.TRITON, [lambda: choice.choose(case)]) == {}
    assert "cpu" in bench.skipped["plain"]


def test_results_that_are_not_finite_are_refused():
    bench = small_bench()
    with pytest.raises(NumbersError, match="attend"):
        bench.finite("attend", [lambda: torch.ones(2), lambda: torch.tensor([1.0, torch.inf])])


def test_peers_that_cannot_run_are_named_and_the_rest_goes_on():
    bench = small_bench(peers=True)

    def absent():
        raise ModuleNotFoundError("No module named 'peer'\nand more")

    assert bench.peer("absent", absent) == {}
    assert bench.peer("there", lambda: [lambda: None]) == {"there": 3.0}
    assert bench.skipped == {"absent": "ModuleNotFoundError: No module named 'peer'"}


def test_an_operation_that_fails_does_not_lose_the_others(monkeypatch):
    bench = small_bench((2,))

    def full(_):
        raise MemoryError("full")

    monkeypatch.setitem(MEASURES, "kda", full)
    ended = run_parts(bench, ("kda", "hyper"))
    assert (ended.failed, ended.interrupted) == ({"kda": "MemoryError: full"}, False)
    assert cases(bench) == {("a site", 2)}


def test_when_time_is_up_what_was_timed_is_kept(monkeypatch):
    bench = small_bench((2,))
    moments = iter([1.0, 9.0, 10.5, 11.0, 12.0, 13.0])
    monkeypatch.setattr(kernels_run.time, "monotonic", lambda: next(moments))
    bench.clock = limited(bench.clock, 10.0)
    assert run_parts(bench, ("small", "hyper")).failed == {}
    assert len(bench.table.rows) == 2
    assert set(bench.skipped) == {"the rest of small", "the rest of hyper"}
    assert limited(len, None) is len
    peers = small_bench(peers=True)
    peers.clock = limited(peers.clock, 0)
    with pytest.raises(TimeUpError):
        peers.peer("late", lambda: [lambda: None])


def test_an_interrupt_keeps_what_was_timed_and_names_the_rest(monkeypatch):
    bench = small_bench((2,))

    def stopped(bench):
        hyper.measure(bench)
        raise KeyboardInterrupt

    monkeypatch.setitem(MEASURES, "kda", stopped)
    ended = run_parts(bench, ("kda", "hyper", "small"))
    assert (ended.failed, ended.interrupted) == ({}, True)
    assert cases(bench) == {("a site", 2)}
    assert bench.skipped == dict.fromkeys(("the rest of kda", "hyper", "small"), INTERRUPTED)


@pytest.mark.parametrize(
    "wrong",
    [
        {"only": ()},
        {"only": ("speed",)},
        {"rows": (0,)},
        {"rows": (1 << 20,)},
        {"pause": -1},
        {"budget": 61},
        {"limit": -1},
        {"jobs": 0},
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong):
    with pytest.raises(UsageError):
        replace(KernelsSettings(), **wrong)


@pytest.mark.parametrize("device", ["cpu", "cuda:99", "nothing"])
def test_without_a_gpu_a_run_is_refused(device):
    with pytest.raises(UsageError, match="only timed on a GPU"):
        measure_kernels(KernelsSettings(device=device), lambda row: None)


class Graphs(Clock):
    """What a GPU's clock keeps."""

    def __init__(self, pause, budget) -> None:
        super().__init__()
        self.spent = {"timing": 2.0}
        self.eager = self


@pytest.fixture
def on_a_cpu(monkeypatch):
    """A whole run where no GPU is: its times say nothing."""
    cpu = torch.device("cpu")
    monkeypatch.setattr(kernels_run, "cuda_device", lambda name, action: cpu)
    monkeypatch.setattr(kernels_run, "choice", SimpleNamespace(no_triton=lambda device: ""))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(kernels_run, "use", lambda tuning, device: None)
    monkeypatch.setattr(kernels_run, "_rates", lambda device, pause: RATES)
    monkeypatch.setattr(kernels_run, "GraphClock", Graphs)
    small = Glm5NextConfig.from_checkpoint_config(small_geometry())
    monkeypatch.setattr(kernels_run, "config_of_geometry", lambda: small)
    monkeypatch.setattr(kernels_run, "compile_ahead", lambda *a, **k: Compiled(1.5, 2, 3, {"part": "full"}))


def test_a_run_keeps_its_rows_where_its_time_went_and_what_it_left(on_a_cpu):
    told = []
    run = measure_kernels(KernelsSettings(only=("small", "hyper"), rows=(2,)), told.append)
    assert run.failed == {}
    assert list(run.rows) == told
    assert {row.operation for row in run.rows} == {"small", "hyper"}
    assert list(run.seconds) == ["compiling ahead", "timing", "preparing"]
    assert (run.seconds["compiling ahead"], run.seconds["timing"]) == (1.5, 2.0)
    document = run.as_dict()
    assert document["compiled"] == {"seconds": 1.5, "processes": 2, "parts": 3, "left": {"part": "full"}}
    assert "linear was not timed: not asked for" in document["not_run"]
    kept = kernels_receipt(run)
    assert kept.results["compiled"] == document["compiled"]


def test_a_limit_counts_from_the_beginning(on_a_cpu, monkeypatch):
    def late(*_, finish, **__):
        assert finish - time.monotonic() <= 5
        monkeypatch.setattr(kernels_run.time, "monotonic", lambda: finish + 6)
        return Compiled()

    monkeypatch.setattr(kernels_run, "compile_ahead", late)
    run = measure_kernels(KernelsSettings(only=("small", "hyper"), rows=(2,), limit=10), lambda row: None)
    assert run.rows == ()
    assert set(run.skipped) == {"the rest of small", "the rest of hyper"}


def test_all_operations_have_a_measure():
    assert tuple(MEASURES) == OPERATIONS


@pytest.mark.gpu
def test_on_a_gpu_every_operation_is_timed_to_its_end():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    if reason := choice.no_gluon(torch.device("cuda")):
        pytest.skip(reason)
    told = []
    run = measure_kernels(KernelsSettings(rows=(1, 512), pause=0, budget=0, jobs=8), told.append)
    assert run.failed == {}
    assert (run.ahead.left, run.interrupted) == ({}, False)
    assert run.seconds["compiling ahead"] > 0
    assert list(run.rows) == told
    assert {row.operation for row in run.rows} == set(OPERATIONS)
    assert all(row.floor_us > 0 and row.us > 0 for row in run.rows)
    routed = next(row for row in run.rows if row.case == experts.CASE)
    assert {experts.PRODUCTS, experts.COMPRESSED} <= set(routed.beside)
