"""Reading ahead: the bytes that are asked for, in the order that was said, out of a bounded ring."""

import threading

import pytest
import torch

from intarsia.checkpoint import Reader
from intarsia.checkpoint.errors import ReadError
from intarsia.core.progress import SILENT
from intarsia.loading import ring
from intarsia.loading.ahead import Ahead
from intarsia.loading.asks import Ask, Span
from intarsia.loading.shares import share_of
from intarsia.loading.staging import Staging
from intarsia.loading.weights import Loader, load_weights, prepared
from intarsia.planning import working
from intarsia.selection.recipes import apply_recipe
from intarsia.selection.source import source_of
from tests.loading.test_streaming import assert_same

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(ring, "BLOCK_BYTES", 1024)


def loaded(plan, deferring=False):
    """The weights of an arrangement through the ring, all of what is read out of it, and how much is left."""
    with plan.checkpoint.reader() as reader, SILENT.phase("", 0) as phase, Staging(reader, CPU) as staging:
        loader = Loader(plan, staging, phase)
        if loader._converter is not None:
            loader._converter.deferring = deferring
        staging.read_ahead(loader.asks(), threads=2)
        weights = {arranged.module.name: loader.load(arranged) for arranged in plan.weights}
        return weights, staging.ahead.left()


@pytest.mark.parametrize("recipe", [None, "spark", "fp4-local"])
@pytest.mark.parametrize("hold", [0, 1 << 30])
@pytest.mark.parametrize("deferring", [False, True])
def test_every_byte_comes_through_the_ring_and_is_the_same(source, monkeypatch, recipe, hold, deferring):
    monkeypatch.setattr(working, "HOLD_BYTES", hold)
    manifest = apply_recipe(recipe, source_of(source)) if recipe else None
    weights, left = loaded(prepared(source, manifest), deferring)
    assert left == 0
    assert_same(weights, load_weights(source, manifest=manifest))


def test_shares_and_compressed_scales_come_through_the_ring_too(converted):
    plan = share_of(prepared(converted), 1, 2)
    weights, left = loaded(plan)
    assert left == 0
    assert_same(weights, load_weights(converted, rank=1, ranks=2))


def test_what_was_not_said_is_read_directly(source):
    entries = [entry for entry in source.tensors.values() if entry.nbytes > 2000][:3]
    with source.reader() as reader, Staging(reader, CPU) as staging:
        staging.read_ahead([Ask.of([Span(entries[0], 500, 1700), Span(entries[2], 0, entries[2].nbytes)])])
        for entry, begin, count in [(1, 0, 1500), (0, 500, 700), (2, 0, 100), (0, 1200, 500), (2, 0, 1999)]:
            target = torch.empty(count, dtype=torch.uint8)
            staging.fill(entries[entry], target, begin)
            expected = reader.read(entries[entry].name).view(-1).view(torch.uint8)[begin : begin + count]
            assert torch.equal(target, expected), (entry, begin)


def test_no_more_is_read_than_the_ring_holds(source, monkeypatch):
    entry = max(source.tensors.values(), key=lambda entry: entry.nbytes)
    read, enough = [], threading.Event()
    original = Reader.fill_range

    def fill_range(self, shard, begin, target):
        original(self, shard, begin, target)
        read.append(target.nbytes)
        if len(read) == 3 * ring.BLOCKS_EACH:
            enough.set()

    monkeypatch.setattr(Reader, "fill_range", fill_range)
    with source.reader() as reader:
        stream = Ahead([reader.twin() for _ in range(3)], CPU, [Ask.of([Span(entry, 0, entry.nbytes)])])
        assert enough.wait(10)
        stream.close()
    lead = entry.begin % 64  # bytes lie in a block as they lie in the file
    assert sorted(read) == [1024 - lead] + [1024] * (3 * ring.BLOCKS_EACH - 1)


def test_a_read_that_fails_is_raised_where_the_bytes_are_asked_for(source, monkeypatch):
    entry = max(source.tensors.values(), key=lambda entry: entry.nbytes)
    original = Reader.fill_range

    def fill_range(self, shard, begin, target):
        if begin >= entry.begin + 2000:
            raise ReadError(entry.name, found="a broken disk", expected="a readable file")
        original(self, shard, begin, target)

    monkeypatch.setattr(Reader, "fill_range", fill_range)
    with source.reader() as reader, Staging(reader, CPU) as staging:
        staging.read_ahead([Ask.of([Span(entry, 0, entry.nbytes)])], threads=3)
        staging.fill(entry, torch.empty(2000, dtype=torch.uint8))
        for _ in range(2):
            with pytest.raises(ReadError, match="a broken disk"):
                staging.fill(entry, torch.empty(500, dtype=torch.uint8), 2000)
    assert not any(thread.name.startswith("intarsia-read-ahead") for thread in threading.enumerate())
