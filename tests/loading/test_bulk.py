"""Pieces placed many at a time: the bytes of placing them one by one, and nothing that does not fit."""

import dataclasses
import os
import shutil

import pytest
import torch

from intarsia.checkpoint import open_checkpoint
from intarsia.checkpoint.errors import ChangedError
from intarsia.core.progress import SILENT
from intarsia.formats import csf
from intarsia.formats.errors import CsfError
from intarsia.kernels.csf import launch
from intarsia.loading import bulk, ring
from intarsia.loading.errors import LoadError
from intarsia.loading.export import convert
from intarsia.loading.shares import share_of
from intarsia.loading.staging import Staging
from intarsia.loading.weights import Loader, load_weights, prepared
from tests.loading.test_streaming import assert_same

CPU = torch.device("cpu")


@pytest.fixture(params=[1024, 1 << 14])
def block(request, monkeypatch):
    monkeypatch.setattr(ring, "BLOCK_BYTES", request.param)


def reference(layout, components, starts, stack, which):
    """What the launch does, by the formats' own decoder."""
    codec = next(name for name, other in launch.LAYOUTS.items() if other is layout)
    fixed, listed = layout.components(*stack.shape[-2:])
    for index, place in enumerate(which):
        begin, end = starts[index : index + 2]
        parts = {name: components[name][index] for name in fixed}
        parts |= {name: components[name][begin:end] for name in listed}
        try:
            csf.decode_into(parts, stack[place].view(torch.float8_e4m3fn), codec)
        except CsfError:
            return torch.tensor(True)
    return torch.tensor(False)


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Compressed scales are expanded some matrices at a time, as no CPU does."""
    monkeypatch.setattr(bulk, "expands_together", lambda *case: True)
    monkeypatch.setattr(bulk, "EXPERTS", 5)
    monkeypatch.setattr(launch, "launch", reference)


class Count:
    total = 0

    def advance(self, count):
        self.total += count


def delivered(plan):
    """The weights of a plan out of a ring; what was left in it, and how many bytes were told of."""
    count = Count()
    with plan.checkpoint.reader() as reader, Staging(reader, CPU) as staging:
        loader = Loader(plan, staging, count)
        staging.read_ahead(loader.asks(), threads=2)
        weights = {one.module.name: loader.load(one) for one in plan.weights}
        return weights, staging.ahead.left(), count.total


@pytest.mark.parametrize("rank", [None, 0, 1])
@pytest.mark.usefixtures("block", "as_on_a_gpu")
def test_in_bulk_every_weight_is_what_it_is_one_by_one(converted, rank):
    ranks = {} if rank is None else {"rank": rank, "ranks": 2}
    plan = share_of(prepared(converted), *ranks.values()) if ranks else prepared(converted)
    found = list(bulk.groups(plan.weights, CPU))
    straight = sum(len(group.weights) for group in found if group.straight)
    assert straight > len(plan.weights) / 2
    if rank is None:
        assert straight == len(plan.weights)
    assert [one for group in found for one in group.weights] == list(plan.weights)
    weights, left, told = delivered(plan)
    assert left == 0
    assert told == plan.stored_bytes
    assert_same(weights, load_weights(converted, **ranks))


@pytest.mark.usefixtures("as_on_a_gpu")
def test_without_a_ring_a_bulk_has_one_of_its_own(converted, monkeypatch):
    monkeypatch.setattr(Staging, "delivers", True)
    plan = prepared(converted)
    with converted.reader() as reader, SILENT.phase("", 0) as phase:
        loader = Loader(plan, Staging(reader, CPU), phase)
        weights = {one.module.name: loader.load(one) for one in plan.weights}
    assert_same(weights, load_weights(converted))


@pytest.mark.usefixtures("block", "as_on_a_gpu")
@pytest.mark.parametrize("codec", ["block", "slab"])
def test_compressed_scales_that_break_a_rule_are_named(source, tmp_path, codec):
    checkpoint = convert(source.path, tmp_path / "broken", recipe="fp4-local", csf=codec)
    base = "csf_base" if codec == "block" else "csf_fixed"
    entry = next(entry for name, entry in checkpoint.tensors.items() if name.endswith(base))
    with (checkpoint.path / entry.shard).open("r+b") as file:
        file.seek(entry.begin)
        file.write(b"\xff" * 16)
    with pytest.raises(CsfError, match=base):
        delivered(prepared(open_checkpoint(checkpoint.path)))


def experts(plan):
    return next(one for one in plan.weights if one.module.stack == "experts")


def targets(arranged, change):
    """Where the pieces of a weight go, the fourth of them changed."""
    piece = dataclasses.replace(arranged.pieces[3], **change)
    pieces = (*arranged.pieces[:3], piece, *arranged.pieces[4:])
    (group,) = bulk.groups([dataclasses.replace(arranged, pieces=pieces)], CPU)
    tensor = torch.empty(arranged.slots["weight"].shape, dtype=torch.bfloat16)
    return [one.targets([{"weight": tensor}], {}) for one in group.bulks()]


def test_a_tensor_of_another_length_than_its_place_is_refused(source):
    arranged = experts(prepared(source))
    assert targets(arranged, {})
    entry = arranged.pieces[3].entries[0]
    for end in (entry.end - 1, entry.end - 2, entry.end + 2, entry.begin):
        with pytest.raises(LoadError, match="piece-size") as refusal:
            targets(arranged, {"entries": (entry._replace(end=end),)})
        assert entry.name in str(refusal.value)


@pytest.mark.parametrize("expert", [0, -1, 1 << 20])
def test_a_place_of_another_tensor_or_outside_is_refused(source, expert):
    arranged = experts(prepared(source))
    with pytest.raises(LoadError, match="piece-place") as refusal:
        targets(arranged, {"expert": expert, "part": 0})
    where = {arranged.pieces[at].entries[0].name for at in (0, 3)}
    assert any(name in str(refusal.value) for name in where)


def test_a_file_that_ends_early_or_changes_is_refused(source, tmp_path):
    folder = tmp_path / "short"
    shutil.copytree(source.path, folder)
    checkpoint = open_checkpoint(folder)
    plan = prepared(checkpoint)
    last = max(checkpoint.tensors.values(), key=lambda entry: entry.end)
    os.truncate(folder / last.shard, last.end - 1)
    with pytest.raises(ChangedError):
        delivered(plan)


def test_weights_that_are_asked_for_apart_do_not_wait_in_memory(source):
    plan = prepared(source)
    with source.reader() as reader, SILENT.phase("", 0) as phase, Staging(reader, CPU) as staging:
        loader = Loader(plan, staging, phase, apart=True)
        staging.read_ahead(loader.asks(), threads=1)
        for one in plan.weights:
            loader.load(one)
            assert not loader._ready
    together = list(bulk.groups(plan.weights, CPU))
    assert len(together) < len(plan.weights)
    assert any(len({one.module.stack for one in group.weights}) > 1 for group in together)
