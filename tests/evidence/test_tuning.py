"""A run of tune without a GPU: which sites a network has, what is kept when one fails or time is up."""

import json
import os
from concurrent.futures.process import BrokenProcessPool

import pytest
import torch

from intarsia.cli.main import main
from intarsia.core.errors import UsageError
from intarsia.evidence.tuning import run as tuning_run
from intarsia.evidence.tuning.compilers import Compilers
from intarsia.evidence.tuning.run import (
    INTERRUPTED,
    SPENT,
    forms_of_geometry,
    jobs_of,
    networks,
    run_jobs,
    tune,
)
from intarsia.evidence.tuning.settings import TuneSettings
from intarsia.evidence.tuning.timer import quietly
from intarsia.evidence.tuning.work import Workshop
from intarsia.kernels.tuning import Site, cache, configurations, described
from intarsia.kernels.tuning.search import search
from intarsia.loading.weights import prepared
from intarsia.models.glm5_next.products import Experts, Product

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def published():
    return forms_of_geometry("glm-5.3-flash", "fp4-local")


def test_sites_of_the_published_network(published):
    jobs = jobs_of([published], TuneSettings(geometry="glm-5.3-flash", rows=(1, 8, 2048)))
    sites = [site for _, site in jobs]
    assert len(set(sites)) == len(sites)
    shapes = {(site.operation, site.formats, site.shape[:2], site.rows) for site in sites}
    for shape in (
        ("linear", ("MXFP8",), (24576, 4096), 8),  # q, k and v together
        ("linear_swiglu", ("MXFP8",), (24576, 4096), 2048),
        ("linear", ("FP8_PB_WO",), (2048, 4096), 8),  # q_a and kv_a; the indexer's are BF16
        ("linear", ("BF16",), (288, 4096), 8),
        ("linear", ("BF16",), (16384, 128), 8),  # f_b and g_b apart
        ("linear", ("BF16",), (16384, 128), 2048),
        ("linear", ("BF16",), (4096, 8192), 8),  # eh_proj
        ("experts", ("W4A16_NVFP4", "expanded"), (288, 2048), 1),
        ("experts", ("W4A16_NVFP4", "expanded"), (288, 2048), 2048),
    ):
        assert shape in shapes, shape
    only = jobs_of([published], TuneSettings(only=("experts",), expert_scales="resident"))
    assert {site.formats for _, site in only} == {("W4A16_NVFP4", "compressed")}


def test_sites_of_a_checkpoint():
    jobs = jobs_of(networks(TuneSettings(), prepared("demo")), TuneSettings(rows=(8,)))
    sites = {site for _, site in jobs}
    assert Site("linear", ("BF16",), (768, 128, 1), 8) in sites
    assert Site("linear_swiglu", ("BF16",), (768, 128, 1), 8) in sites
    assert not any(site.operation == "experts" for site in sites)  # BF16 experts have no tiles
    two = {
        site
        for _, site in jobs_of(networks(TuneSettings(tp=(2,)), prepared("demo")), TuneSettings(rows=(8,)))
    }
    assert Site("linear", ("BF16",), (384, 128, 1), 8) in two  # q, k and v of two of the four heads


def test_sites_of_the_shares_of_ranks():
    settings = TuneSettings(geometry="glm-5.3-flash", tp=(1, 2), rows=(8,))
    shapes = {
        (site.operation, site.formats, site.shape[:2])
        for _, site in jobs_of(networks(settings, None), settings)
    }
    for shape in (
        ("linear", ("MXFP8",), (24576, 4096)),
        ("linear", ("MXFP8",), (12288, 4096)),
        ("linear", ("MXFP8",), (4096, 4096)),  # o of half of the heads: fewer columns
        ("experts", ("W4A16_NVFP4", "expanded"), (288, 1024)),
    ):
        assert shape in shapes, shape


@pytest.mark.parametrize(
    "work",
    [
        Product("MXFP8", (64, 64), 128, "together"),
        Product("FP8_PB_WO", (256,), 128, "swiglu"),
        Product("BF16", (64, 64), 128, "apart"),
        Experts("NVFP4", 8, 128, 128, 2),
    ],
    ids=lambda work: work.form,
)
def test_calls_are_of_the_fewest_and_the_most_rows_of_a_bucket(work):
    site = work.site(16) if isinstance(work, Product) else work.site(16, "expanded")
    trial = Workshop(CPU).trial(work, site)
    counts = set()
    for call in trial.calls:
        result = call()
        for tensor in [result] if isinstance(result, torch.Tensor) else result:
            counts.add(tensor.shape[0])
            assert torch.isfinite(tensor).all()
    assert counts == {9, 16}


def timer(calls):
    return lambda: 5.0


def small(**changes) -> tuple[list, TuneSettings]:
    jobs = [(work, work.site(rows)) for work in WORKS for rows in (8, 16)]
    return jobs, TuneSettings(**changes)


WORKS = (Product("BF16", (64,), 128, "together"), Product("MXFP8", (128,), 256, "together"))


def test_a_run_is_kept_and_read_again(tmp_path):
    jobs, settings = small()
    shop = Workshop(CPU)
    found = run_jobs(jobs, lambda work, site: search(shop.trial(work, site), timer), settings, CPU)
    assert len(found.document.entries) == 4
    assert found.left == {}
    table = cache.read(cache.write(found.document, tmp_path / "tuned.json"), CPU)
    for _, site in jobs:
        assert table.found[site].configuration == configurations("linear").default(site)
    assert json.dumps(found.as_dict())


def test_a_search_that_fails_or_comes_too_late_is_named():
    jobs, settings = small()
    shop = Workshop(CPU)

    def one(work, site):
        if work == WORKS[0] and site.rows == 16:
            raise MemoryError("full\nand more")
        return search(shop.trial(work, site), timer)

    found = run_jobs(jobs, one, settings, CPU)
    assert len(found.searched) == 3
    assert found.left == {jobs[1][1]: "MemoryError: full"}
    late = run_jobs(jobs, one, TuneSettings(budget=0), CPU)
    assert set(late.left.values()) == {SPENT}
    assert late.document.entries == []


def test_an_interrupt_keeps_what_was_found_and_names_the_rest():
    jobs, settings = small()
    shop = Workshop(CPU)

    def one(work, site):
        if site == jobs[1][1]:
            raise KeyboardInterrupt
        return search(shop.trial(work, site), timer)

    found = run_jobs(jobs, one, settings, CPU)
    assert found.interrupted
    assert [searched.site for searched in found.searched] == [jobs[0][1]]
    assert len(found.document.entries) == 1
    assert found.left == {site: INTERRUPTED for _, site in jobs[1:]}


@pytest.mark.parametrize(
    "wrong",
    [
        {"only": ()},
        {"only": ("speed",)},
        {"rows": ()},
        {"rows": (0,)},
        {"tp": ()},
        {"tp": (0,)},
        {"budget": -1},
        {"repeats": 2},
        {"jobs": 0},
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong):
    with pytest.raises(UsageError):
        TuneSettings(**wrong)


def test_one_network_and_a_gpu_are_needed():
    for settings, arrangement in ((TuneSettings(), None), (TuneSettings(geometry="glm-5.3-flash"), object())):
        with pytest.raises(UsageError, match="network"):
            tune(settings, arrangement)
    with pytest.raises(UsageError, match="only tuned on a GPU"):
        tune(TuneSettings(geometry="glm-5.3-flash", device="cpu"))


def planted():
    jobs, settings = small()
    site = jobs[0][1]
    best = configurations("linear").candidates(site)[1]
    shop = Workshop(CPU)

    def clock(calls):
        from intarsia.kernels.tuning import tuned

        quick = tuned("linear", site.formats, site.shape, site.rows, CPU) == best
        return lambda: 4.0 if quick else 5.0

    def one(work, where):
        return search(shop.trial(work, where), clock)

    return run_jobs(jobs, one, settings, CPU), site, best


def test_the_command_writes_the_file_and_tells_what_changed(tmp_path, capsys, monkeypatch):
    run, site, best = planted()
    monkeypatch.setattr(tuning_run, "tune", lambda settings, arrangement, progress: run)
    monkeypatch.setattr(tuning_run, "device_of", lambda settings, arrangement: CPU)
    out = tmp_path / "tuned.json"
    assert main(["tune", "--geometry", "glm-5.3-flash", "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert "1 of 4 sites run faster with another configuration" in shown.err
    assert "4.00" in shown.out
    assert cache.read(out, CPU).found[site].configuration == best
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert main(["tune", "demo", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["file"] == str(tmp_path / "cache" / "intarsia" / "tuning" / "cpu.json")
    assert told["entries"][0]["configuration"] == described(best)


def test_where_nothing_was_tuned_an_older_file_stays(tmp_path, capsys, monkeypatch):
    jobs, _ = small()
    run = run_jobs(jobs, None, TuneSettings(budget=0), CPU)
    monkeypatch.setattr(tuning_run, "tune", lambda settings, arrangement, progress: run)
    monkeypatch.setattr(tuning_run, "device_of", lambda settings, arrangement: CPU)
    out = tmp_path / "tuned.json"
    out.write_text("older")
    assert main(["tune", "--geometry", "glm-5.3-flash", "--out", str(out)]) == 1
    assert SPENT in capsys.readouterr().err
    assert out.read_text() == "older"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["demo", "--device", "cpu"], "only tuned on a GPU"),
        ([], "a checkpoint's path or --geometry NAME"),
        (["--only", "speed"], "speed"),
        (["--geometry", "nothing", "--device", "cpu"], "device"),
    ],
)
def test_wrong_use(words, reason, capsys):
    assert main(["tune", *words]) == 2
    assert reason in capsys.readouterr().err


def test_compilers_are_not_heard_and_standard_error_is_there_again(capfd):
    os.write(2, b"before\n")
    with quietly():
        os.write(2, b"thousands of lines\n")
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "before\nafter\n"


def test_processes_run_every_candidate_and_name_what_fails(monkeypatch):
    """On a CPU nothing is compiled; a format that the reference lacks fails like a kernel."""
    compilers = Compilers(CPU, "expanded", 1)
    try:
        assert compilers(WORKS[0], WORKS[0].site(8)) == {}
        broken = Product("NVFP9", (64,), 128, "together")
        found = compilers(broken, WORKS[0].site(8))
    finally:
        compilers.close()
    assert set(found) == set(configurations("linear").candidates(WORKS[0].site(8)))
    assert all("NVFP9" in reason for reason in found.values())


class Told:
    """A task's result."""

    def __init__(self, answer) -> None:
        self.answer = answer

    def result(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answers", "refused"),
    [
        ([(1, ""), (1, "CUDA error: illegal address"), (1, "CUDA error: illegal address"), (2, "")], {1}),
        ([(1, "RuntimeError: PassManager"), (2, "OutOfMemoryError: CUDA out of memory"), (1, "")], {0}),
        ([(1, "RuntimeError: one"), BrokenProcessPool(), (1, "RuntimeError: two")], {0}),
    ],
)
def test_a_process_that_lost_its_device_is_not_believed_again(monkeypatch, answers, refused):
    site = WORKS[0].site(8)
    told = answers + [(9, "")] * len(configurations("linear").candidates(site))
    monkeypatch.setattr(Compilers, "_submit", lambda self, work, site, place: Told(told[place]))
    candidates = configurations("linear").candidates(site)
    assert set(Compilers(CPU, "expanded", 1)(WORKS[0], site)) == {candidates[place] for place in refused}
