"""Compiling ahead: every figure is some part's, autotuners share what they try, and no process is left."""

import multiprocessing
import os
import sys
import time
from dataclasses import replace
from itertools import count

import pytest
import torch

from intarsia.evidence.beside import begin_beside
from intarsia.evidence.kernels import ahead
from intarsia.evidence.kernels.ahead import (
    AheadBench,
    Share,
    ShareClock,
    autotuners_share,
    compile_ahead,
    importing,
    shares,
)
from intarsia.evidence.kernels.operations import MEASURES
from intarsia.evidence.kernels.settings import OPERATIONS, KernelsSettings
from intarsia.evidence.kernels.table import Table
from intarsia.families.glm5_next.config import Glm5NextConfig
from tests.evidence.test_synthetic import small_geometry

CPU = torch.device("cpu")
TWO = KernelsSettings(only=("hyper",), jobs=2)


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


def named(settings, device, share):
    """The second fails; the first says what it is."""
    if share.index:
        raise MemoryError("full")
    return f"{share} on {device}"


def dying(settings, device, share):
    os._exit(3)


def late(settings, device, share):
    time.sleep(60)


def test_every_figure_is_of_one_part():
    assert set(ahead.SHARES) == set(OPERATIONS)
    parts = shares(("kda", "linear", "storing"), 4)
    assert [str(part) for part in parts[3:6]] == [
        "part 4 of 4 of kda",
        "part 1 of 4 of linear",
        "part 2 of 4 of linear",
    ]
    assert shares(("storing",), 4) == [Share("storing", 0, 1)]
    ran = []
    for part in shares(("linear",), 4):
        clock = ShareClock(part)
        for figure in range(10):
            clock([lambda figure=figure, call=call: ran.append((figure, call)) for call in range(3)])
    assert sorted(ran) == [(figure, call) for figure in range(10) for call in (0, 2)]


@pytest.mark.parametrize("operation", ["linear", "hyper", "head", "small", "kda"])
def test_parts_together_run_what_a_run_times(operation):
    config = Glm5NextConfig.from_checkpoint_config(small_geometry())
    clocks = [ShareClock(Share(operation, index, 3)) for index in range(3)]
    for clock in clocks:
        bench = AheadBench(config, CPU, clock, Table(ahead.NO_RATES), (1,))
        MEASURES[operation](bench)
        assert bench.turns(1) == 1
    assert len({clock.figures for clock in clocks}) == 1
    assert clocks[0].figures >= len(bench.table.rows) > 0


def test_peers_are_tried_in_every_part_and_may_fail():
    config = Glm5NextConfig.from_checkpoint_config(small_geometry())
    bench = AheadBench(config, CPU, ShareClock(Share("kda", 1, 3)), Table(ahead.NO_RATES), peers=True)
    ran = count()

    def broken():
        raise RuntimeError("no such peer")

    assert bench.peer("one", lambda: [lambda: next(ran)]) == {}
    assert bench.peer("nothing to compile", lambda: [lambda: next(ran)], compiles=False) == {}
    assert bench.peer("broken", broken) == {}
    assert next(ran) == 1


def test_autotuners_try_their_share_once_and_keep_nothing():
    tuning = pytest.importorskip("triton.runtime.autotuner")
    own = dict(vars(tuning.Autotuner))
    tried = []

    class Tuner(tuning.Autotuner):
        def __init__(self):
            self.configs, self.early_config_prune, self.perf_model = list(range(7)), None, None

    def attempts():
        tried.append(tuner.do_bench(lambda: None, quantiles=(0.5, 0.2, 0.8)))

    tuner = Tuner()
    found = []
    for index in range(3):
        with autotuners_share(Share("kda", index, 3)):
            found += tuner.prune_configs({})
            assert tuner.check_disk_cache("key", [], attempts) is False
    assert sorted(found) == list(range(7))
    assert tried == [[1.0, 1.0, 1.0]] * 3
    with autotuners_share(Share("kda", 9, 10)):
        assert tuner.prune_configs({}) == [0]  # never none
    names = ("prune_configs", "do_bench", "check_disk_cache")
    assert all(vars(tuning.Autotuner)[name] is own[name] for name in names)


@pytest.mark.parametrize(
    ("work", "finish", "left"),
    [
        (named, None, ["part 1 of 2 of hyper on cpu", "MemoryError: full"]),
        (dying, None, ["a process died"] * 2),
        (late, 0.0, [ahead.TIME_UP] * 2),
    ],
)
def test_what_was_not_compiled_is_named_and_no_process_is_left(work, finish, left):
    before = set(multiprocessing.active_children())
    found = compile_ahead(TWO, CPU, finish=finish, work=work)
    assert list(found.left.values()) == left
    assert (found.processes, found.parts) == (2, 2)
    assert found.seconds > 0
    assert set(multiprocessing.active_children()) == before


def test_one_process_compiles_nothing_ahead():
    assert compile_ahead(replace(TWO, jobs=1), CPU, work=dying).processes == 0


def waiting(place):
    begin_beside()
    place.send(os.getpid())
    time.sleep(60)


def parent(place):
    multiprocessing.get_context("spawn").Process(target=waiting, args=(place,)).start()
    time.sleep(60)


def test_a_process_ends_with_the_one_that_started_it():
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=parent, args=(there,))
    process.start()
    assert here.poll(60)
    child = here.recv()
    process.kill()
    process.join()
    for _ in range(100):
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        with open(f"/proc/{child}/stat") as stat:
            if stat.read().rpartition(")")[2].split()[0] == "Z":
                return
        time.sleep(0.1)
    os.kill(child, 9)
    raise AssertionError("it lives")


def test_modules_are_imported_beside_and_may_be_missing():
    names = ("tests.evidence.nowhere", "wave")
    sys.modules.pop("wave", None)
    with importing(names):
        pass
    assert "wave" in sys.modules
