"""The engine checks over several ranks of the demo, cut short: they pass, and what any rank finds is told."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from intarsia import api
from intarsia.engine.requests import Request
from intarsia.evidence.checks import check_lanes_concurrent, check_shared, cover, ranks, shared
from intarsia.evidence.checks import concurrent as concurrent_check
from intarsia.evidence.checks.bench import Bench
from intarsia.evidence.checks.coverage import Coverage
from intarsia.groups.errors import RanksDivergedError
from tests.groups.threads import on_ranks


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def streams(model, progress):
    coverage = Coverage("streams")
    bench = Bench(model, coverage, window=256)
    bench.settings = replace(bench.settings, drafts=2)  # a reply is as long as some steps can be
    cover.cover_streams(bench)
    return coverage.report()


def concurrent(model, progress):
    return check_lanes_concurrent(model, progress, most=2)


@pytest.mark.parametrize(
    ("number", "check"),
    [(3, streams), (2, concurrent), (2, check_shared), (3, check_shared)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_checks_pass_over_ranks(number, check, monkeypatch):
    monkeypatch.setattr(cover, "STREAMS", 2)
    monkeypatch.setattr(shared, "ROWS", 2)
    monkeypatch.setattr(concurrent_check, "LENGTHS", (3, 40))
    monkeypatch.setattr(concurrent_check, "REPLIES", (4, 8))
    monkeypatch.setattr(concurrent_check, "LONG_REPLY", 8)

    def work(group):
        group.store = stores[group.rank]
        return ranks.run_check({"it": check}, "it", api.load("demo", group=group), group)

    stores = [dist.HashStore()] * number
    first, *others = on_ranks(number, work)
    assert first.passed
    assert all(other == first for other in others)


def test_unequal_shares_keep_and_drop_the_same_states():
    # Three ranks hold 2, 1 and 1 of the demo's four KDA heads; room is for one kept state.
    store = dist.HashStore()

    def work(group):
        group.store = store
        bench = Bench(api.load("demo", group=group), Coverage("it"), window=256)
        sizes = bench.engine().capacity.sizes
        engine = bench.engine(kept_bytes=sizes.kept + 4 * sizes.page)
        for seed in (0, 1, 0):
            bench.run(engine, [Request(f"{seed}", bench.prompt(seed, 140), max_tokens=2, keep_at=(128,))])
        return engine.loop.store.counts, engine.loop.store.nbytes, bench.coverage.report().failures

    first, *others = on_ranks(3, work)
    assert first[0].evicted
    assert first[2] == ()
    assert others == [first, first]


def test_what_another_rank_finds_is_a_failure_on_all():
    store = dist.HashStore()

    def work(group):
        group.store = store
        coverage = Coverage("it")
        coverage.compare("tokens", group.rank, 0, 1)
        return ranks.run_check({"it": lambda model, progress: coverage.report()}, "it", None, group)

    assert {report.failures for report in on_ranks(2, work)} == {("rank 1: tokens: found 1; expected 0",)}


def test_a_rank_that_is_in_another_state_ends_the_check():
    store = dist.HashStore()

    def work(group):
        group.store = store
        bench = Bench(api.load("demo", group=group), Coverage("it"), window=128)
        engine = bench.engine()
        if group.rank == 1:
            engine.loop.pool.ensure(0, 1)
        with pytest.raises(RanksDivergedError):
            bench.run(engine, [Request("one", bench.prompt(0, 5), max_tokens=2)])

    on_ranks(2, work)
