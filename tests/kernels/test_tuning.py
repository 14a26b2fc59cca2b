"""Configurations as data, what is in use, and the search with a clock that answers as it is told."""

from dataclasses import replace

import pytest
import torch

from intarsia.kernels import tuning
from intarsia.kernels.experts import packed_launch
from intarsia.kernels.linear import plan
from intarsia.kernels.tuning import Found, Site, Table, configurations, described, trying, tuned
from intarsia.kernels.tuning.candidates import operations
from intarsia.kernels.tuning.errors import OperationError
from intarsia.kernels.tuning.search import OTHER_BITS, Trial, search

CPU = torch.device("cpu")
SITES = (
    Site("linear", ("MXFP8",), (24576, 4096, 1), 8),
    Site("linear", ("FP8_PB_WO",), (4096, 16384, 8), 16),
    Site("linear", ("BF16",), (320, 4096, 8), 64),
    Site("linear", ("FP8_PB_WO",), (4096, 16384, 8), 2048),
    Site("linear_swiglu", ("MXFP8",), (24576, 4096, 1), 1024),
    Site("experts", ("NVFP4", "expanded"), (288, 2048, 4096, 8), 1),
    Site("experts", ("W4A16_NVFP4", "compressed"), (288, 2048, 4096, 8), 512),
)


@pytest.fixture(autouse=True)
def nothing_installed():
    yield
    tuning.install(CPU, None)


@pytest.mark.parametrize("site", SITES, ids=str)
def test_candidates_are_several_each_once_and_the_default_is_the_first(site):
    tunable = configurations(site.operation)
    assert tunable.refuse(site) == ""
    found = tunable.candidates(site)
    assert found[0] == tunable.default(site)
    assert len(set(found)) == len(found) >= 4
    assert len({str(described(one)) for one in found}) == len(found)


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 16, 17, 100, 513, 9000])
def test_a_buckets_default_is_what_runs_for_all_its_rows(rows):
    tunable = configurations("linear")
    bucket = tunable.bucket(rows)
    assert tunable.smallest(bucket) <= rows
    assert rows <= bucket or bucket == tunable.buckets[-1]
    site = Site("linear", ("MXFP8",), (4096, 8192, 8), bucket)
    assert tunable.default(site) == plan.shape(8, 4096, 8192, rows, "MXFP8")


def test_the_ranges_of_k_are_no_part_of_any_configuration():
    names = {field for site in SITES for one in configurations(site.operation).candidates(site)
             for field in described(one)}  # fmt: skip
    assert "ranges" not in names


@pytest.mark.parametrize(
    "site",
    [
        Site("linear", ("NVFP4",), (64, 128, 1), 8),
        Site("linear", ("MXFP8", "MXFP8"), (64, 128, 1), 8),
        Site("linear", ("MXFP8",), (64, 128), 8),
        Site("linear", ("MXFP8",), (64, 129, 1), 8),
        Site("linear", ("MXFP8",), (64, 0, 1), 8),
        Site("linear", ("MXFP8",), (-64, -128, 1), 8),
        Site("linear", ("MXFP8",), (64, 1024, 3), 8),
        Site("linear", ("MXFP8",), (1 << 30, 1 << 30, 1), 8),
        Site("experts", ("NVFP4",), (8, 128, 128, 2), 8),
        Site("experts", ("NVFP4", "folded"), (8, 128, 128, 2), 8),
        Site("experts", ("NVFP4", "expanded"), (8, 100, 128, 2), 8),
        Site("experts", ("MXFP8", "expanded"), (8, 128, 128, 2), 8),
        Site("experts", ("NVFP4", "expanded"), (8, 0, 128, 2), 8),
    ],
    ids=str,
)
def test_sites_that_cannot_be_say_why(site):
    assert configurations(site.operation).refuse(site)


def test_what_is_installed_is_what_a_call_asks_for():
    site = SITES[0]
    other = configurations("linear").candidates(site)[1]
    ask = ("linear", ("MXFP8",), (24576, 4096, 1))
    assert tuned(*ask, 3, CPU) is None
    tuning.install(CPU, Table("file", "today", {site: Found(other, 1.0, 0.1, 2.0, 0.1)}))
    assert tuned(*ask, 3, CPU) == other
    assert tuned(*ask, 8, CPU) == other
    assert tuned(*ask, 9, CPU) is None  # another bucket
    assert tuned("linear", ("MXFP8",), (24576, 4096, 2), 3, CPU) is None
    assert tuning.found(site, CPU).default_us == 2.0
    third = configurations("linear").candidates(site)[2]
    with trying(site, third):
        assert tuned(*ask, 3, CPU) == third
    assert tuned(*ask, 3, CPU) == other


def test_experts_ask_for_theirs():
    class Weight:
        format, shape, device = "NVFP4", (288, 4096, 4096), CPU
        scales = torch.empty(0)

    class Down(Weight):
        shape = (288, 4096, 2048)

    site = Site("experts", ("NVFP4", "expanded"), (288, 2048, 4096, 8), 32)
    other = replace(configurations("experts").default(site), depth=3)
    assert packed_launch.tuned_form(Weight, Down, 20, 8) is None
    tuning.install(CPU, Table("file", "today", {site: Found(other, 1.0, 0.1, 2.0, 0.1)}))
    assert packed_launch.tuned_form(Weight, Down, 20, 8) == other


class Script:
    """A timer: `speeds` are the times of each candidate, one after another and then from the beginning."""

    def __init__(self, site: Site, speeds: dict[int, list[float]], usual: float = 20.0) -> None:
        self.candidates = configurations(site.operation).candidates(site)
        self.site, self.speeds, self.usual = site, speeds, usual
        self.asked: list[int] = []

    def __call__(self, calls):
        shape = (self.site.operation, self.site.formats, self.site.shape, self.site.rows, CPU)
        place = self.candidates.index(tuned(*shape))
        turn = iter(range(10**6))

        def again() -> float:
            self.asked.append(place)
            told = self.speeds.get(place, [self.usual])
            return told[next(turn) % len(told)]

        return again


def run(speeds, site=SITES[0], call=lambda: torch.ones(2), repeats=5):
    script = Script(site, speeds)
    return search(Trial(site, [call, call]), script, repeats=repeats), script


def test_the_fastest_replaces_the_default_beyond_the_spread():
    found, script = run({0: [10.0, 10.2], 2: [9.0, 9.1], 4: [8.0, 8.1]})
    assert found.found.configuration == script.candidates[4]
    assert 8.0 <= found.found.us <= 8.1
    assert 10.0 <= found.found.default_us <= 10.2
    assert found.found.spread_us == pytest.approx(0.1)
    assert found.tried == len(script.candidates)
    # finalists in turn with the default: each as often as it was repeated, and once before
    assert script.asked.count(0) == script.asked.count(4) == 6


@pytest.mark.parametrize(
    "speeds",
    [
        {0: [10.0], 3: [9.8, 10.3]},  # its own spread is larger than what it gains
        {0: [10.0, 10.0, 10.6], 3: [9.7]},  # the default's is
        {0: [10.0], 3: [10.0]},
        {0: [8.0]},
    ],
)
def test_the_default_stays_where_nothing_is_faster_beyond_doubt(speeds):
    found, script = run(speeds)
    assert found.found.configuration == script.candidates[0]
    assert found.found.us == found.found.default_us


def test_a_candidate_with_other_bits_never_wins():
    site = SITES[0]
    shape = (site.operation, site.formats, site.shape, 8, CPU)
    wrong = configurations("linear").candidates(site)[3]

    def call():
        return torch.tensor([-0.0]) if tuned(*shape) == wrong else torch.tensor([0.0])

    found, script = run({0: [10.0], 3: [1.0], 5: [7.0]}, call=call)
    assert found.refused == {wrong: OTHER_BITS}
    assert found.found.configuration == script.candidates[5]


def test_a_nan_is_equal_to_itself_and_shapes_and_types_count():
    site = SITES[0]
    shape = (site.operation, site.formats, site.shape, 8, CPU)
    candidates = configurations("linear").candidates(site)
    results = {candidates[1]: torch.tensor([1.0, float("nan")], dtype=torch.float64),
               candidates[2]: torch.tensor([1.0, float("nan"), 0.0])}  # fmt: skip

    def call():
        return results.get(tuned(*shape), torch.tensor([1.0, float("nan")]))

    found, _ = run({0: [10.0]}, call=call)
    assert set(found.refused) == set(results)


def test_a_candidate_that_fails_is_refused_and_a_default_that_fails_is_raised():
    site = SITES[0]
    shape = (site.operation, site.formats, site.shape, 8, CPU)
    candidates = configurations("linear").candidates(site)

    def call():
        if tuned(*shape) == failing:
            raise RuntimeError("out of resources\nand more")
        return torch.ones(1), torch.zeros(1)

    failing = candidates[2]
    found, _ = run({0: [10.0], 1: [9.0]}, call=call)
    assert found.refused == {failing: "RuntimeError: out of resources"}
    failing = candidates[0]
    with pytest.raises(RuntimeError):
        run({}, call=call)


def test_operations_that_offer_candidates_are_known():
    assert set(operations()) == {"linear", "linear_swiglu", "experts"}
    with pytest.raises(OperationError, match="speed, which has no configurations"):
        configurations("speed")


def test_what_is_known_to_fail_is_not_tried_and_time_ends_the_trying():
    site = SITES[0]
    candidates = configurations("linear").candidates(site)
    shape = (site.operation, site.formats, site.shape, 8, CPU)
    tried = []

    def call():
        tried.append(tuned(*shape))
        return torch.ones(1)

    known = {candidates[0]: "the default's are raised", candidates[1]: "no registers"}
    script = Script(site, {0: [10.0], 1: [1.0], 2: [5.0]})
    found = search(Trial(site, [call]), script, known=known, finish=lambda: len(set(tried)) >= 3)
    assert set(tried) == {candidates[0], candidates[2], candidates[3]}
    assert found.refused == {candidates[1]: "no registers"}
    assert found.tried == 3
    assert found.found.configuration == candidates[2]
