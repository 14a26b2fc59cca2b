"""Ranks that meet over TCP: equal ones go on, different ones refuse, and a port in use is told."""

import socket
import threading
import time

import pytest
import torch

from intarsia.checkpoint import open_checkpoint
from intarsia.core.config import EngineSettings
from intarsia.core.errors import UsageError
from intarsia.engine import joining
from intarsia.engine.joining import identity, join, plan_hash
from intarsia.groups.errors import RankMissingError, RanksDifferError, RendezvousError
from intarsia.loading.arrange import arrange
from intarsia.loading.errors import LoadError
from tests.synthetic import tiny_config, write_source

CPU = torch.device("cpu")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def meet(plans, timeout=20.0, **changed):
    """What `join` gives or raises on every rank; `changed` settings have one value a rank."""
    port, results = free_port(), [None] * len(plans)

    def run(rank):
        own = {name: values[rank] for name, values in changed.items()}
        settings = EngineSettings(rank=rank, master_port=port, rank_timeout=timeout, **({"tp": 2} | own))
        try:
            results[rank] = join(settings, plans[rank], CPU)
        except Exception as error:
            results[rank] = error

    threads = [
        threading.Thread(target=run, args=(rank,), name=f"rank {rank}")
        for rank, plan in enumerate(plans)
        if plan
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


@pytest.fixture(scope="module")
def plan():
    return arrange(open_checkpoint("demo"))


def test_equal_ranks_form_a_group(plan):
    groups = meet([plan, plan])
    assert [(group.rank, group.ranks) for group in groups] == [(0, 2), (1, 2)]


def test_other_settings_are_refused_on_both_with_both_values(plan):
    for error in meet([plan, plan], drafts=[3, 1], dtype=["float32", "bfloat16"]):
        assert isinstance(error, RanksDifferError)
        assert {item.where for item in error.violations} == {"drafts", "dtype"}
        assert "3 on rank 0, 1 on rank 1" in str(error)


def test_another_count_is_refused_on_both_without_waiting_for_ranks_that_never_come(plan):
    begin = time.monotonic()
    for error in meet([plan, plan], tp=[2, 3]):
        assert isinstance(error, RanksDifferError)
        assert "2 on rank 0, 3 on rank 1" in str(error)
    assert time.monotonic() - begin < 12


def test_other_versions_are_refused(plan, monkeypatch):
    monkeypatch.setattr(joining, "version", lambda name: f"1.0 of {threading.current_thread().name}")
    for error in meet([plan, plan]):
        assert [item.where for item in error.violations] == ["intarsia"]
        assert "1.0 of rank 0 on rank 0, 1.0 of rank 1 on rank 1" in str(error)


def test_ranks_meet_around_a_ring_and_refuse_the_same(plan):
    ports = [free_port(), free_port()]

    def run(rank, drafts):
        settings = EngineSettings(
            tp=2, rank=rank, drafts=drafts, master_port=ports[rank], rank_timeout=10.0,
            ring=f"127.0.0.1:{ports[1 - rank]},127.0.0.1:{ports[1 - rank]}",
        )  # fmt: skip
        try:
            results[rank] = join(settings, plan, CPU)
        except Exception as error:
            results[rank] = error

    for drafts in ((1, 1), (1, 2)):
        results = [None, None]
        threads = [threading.Thread(target=run, args=(rank, drafts[rank])) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        if drafts[0] == drafts[1]:
            assert [group.rank for group in results] == [0, 1]
            for group in results:
                group.store.lines.close()
        else:
            assert all("1 on rank 0, 2 on rank 1" in str(error) for error in results)


def test_a_ring_is_asked_for_on_each_rank_by_itself():
    with pytest.raises(UsageError, match="--rank"):
        EngineSettings(tp=3, ring="10.0.0.1,10.0.0.2")


def test_other_checkpoints_are_refused(plan, tmp_path):
    other = arrange(write_source(tmp_path / "other", tiny_config()))
    for error in meet([plan, other]):
        assert [item.where for item in error.violations] == ["checkpoint"]


def test_a_rank_that_does_not_come_is_named(plan):
    error = meet([plan, None], timeout=0.5)[0]
    assert isinstance(error, RankMissingError)
    assert error.where == "rank 1"


def test_nobody_at_the_meeting_point_is_told(plan):
    error = meet([None, plan], timeout=0.5)[1]
    assert isinstance(error, RendezvousError)
    assert "start rank 0" in error.action


def test_a_port_in_use_is_told(plan):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = EngineSettings(tp=2, rank=0, master_port=taken.getsockname()[1], rank_timeout=2.0)
        with pytest.raises(RendezvousError) as refusal:
            join(settings, plan, CPU)
    assert refusal.value.found == "a port in use"


def test_more_ranks_than_units_are_refused_before_anything_is_loaded(plan):
    settings = EngineSettings(tp=5, rank=0, master_port=free_port(), rank_timeout=0.2)
    with pytest.raises((LoadError, RankMissingError)):
        join(settings, plan, CPU)
    with pytest.raises(LoadError) as refusal:
        plan_hash(plan, 5)
    assert {item.rule for item in refusal.value.violations} == {"fewer-units"}


def test_identity_and_plan_follow_the_checkpoint(plan, tmp_path):
    same = open_checkpoint("demo")
    other = write_source(tmp_path / "other", tiny_config())
    assert identity(same) == identity(plan.checkpoint) != identity(other)
    assert len({plan_hash(plan, ranks) for ranks in (1, 2, 3)}) == 3


def test_a_rank_outside_the_count_is_wrong_use():
    with pytest.raises(UsageError):
        EngineSettings(tp=2, rank=2)
