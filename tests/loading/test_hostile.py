"""Damaged files on the way that a GPU's loads take: refused by name, or loaded as they are loaded one by one.

Every byte that is written is held against the memory that was allocated for it.
"""

import ctypes
import dataclasses
import os
import random
import shutil
import threading
from math import prod
from unittest.mock import ANY

import pytest
import torch

from intarsia.checkpoint import open_checkpoint, reader
from intarsia.checkpoint.dtypes import BITS
from intarsia.checkpoint.errors import ChangedError, TruncatedError
from intarsia.core.errors import IntarsiaError
from intarsia.core.progress import SILENT
from intarsia.kernels import scatter
from intarsia.loading import bulk, ring, stacks
from intarsia.loading.errors import LoadError
from intarsia.loading.export import convert
from intarsia.loading.staging import Staging
from intarsia.loading.weights import Loader, load_weights, prepared
from intarsia.selection.errors import SelectionError
from intarsia.selection.recipes import apply_recipe
from intarsia.selection.source import source_of
from tests.checkpoint.test_fuzz import check_hides_nothing
from tests.loading.test_bulk import reference
from tests.loading.test_streaming import assert_same

CPU = torch.device("cpu")
BLOCK = 1 << 13


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    """Bulks and stacks as a GPU has them, out of small blocks."""
    monkeypatch.setattr(ring, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(bulk, "expands_together", lambda *case: True)
    monkeypatch.setattr("intarsia.kernels.csf.launch.launch", reference)
    monkeypatch.setattr(stacks, "encodes_into", lambda name, *case: name in ("MXFP8", "NVFP4", "W4A16_NVFP4"))


@pytest.fixture
def guarded(monkeypatch):
    """Writes to addresses are checked: each lies inside one allocation of torch."""
    held, empty = {}, torch.empty

    def allocated(*size, **options):
        tensor = empty(*size, **options)
        if tensor.device == CPU:
            held[tensor.data_ptr()] = tensor.nbytes
        return tensor

    def checked(address, source, count):
        fits = any(begin <= address and address + count <= begin + size for begin, size in held.items())
        assert fits, f"{count} bytes at {address:#x}"
        return ctypes.memmove(address, source, count)

    monkeypatch.setattr(torch, "empty", allocated)
    monkeypatch.setattr(scatter, "memmove", checked)


@pytest.fixture(params=["bf16", "block", "slab", "spark"])
def case(request, small, tmp_path):
    """A checkpoint of one kind, and the recipe that it is loaded by."""
    checkpoint = small(request.param)
    if request.param == "spark":
        return checkpoint, "spark"
    if request.param != "bf16":
        convert(checkpoint.path, tmp_path / "out", recipe="fp4-local", csf=request.param)
        checkpoint = open_checkpoint(tmp_path / "out")
    return checkpoint, None


def manifest_of(checkpoint, recipe):
    return apply_recipe(recipe, source_of(checkpoint)) if recipe else None


def delivered(checkpoint, manifest=None, prepare=None):
    """The weights through the ring; `prepare` is called between the headers and the first read."""
    plan = prepared(checkpoint, manifest)
    if prepare is not None:
        prepare()
    with plan.checkpoint.reader() as held, SILENT.phase("", 0) as phase, Staging(held, CPU) as staging:
        loader = Loader(plan, staging, phase, later=True)
        staging.read_ahead(loader.asks(), threads=2)
        weights = {one.module.name: loader.load(one) for one in plan.weights}
        loader.settle()
        return weights


def ended():
    return not any(thread.name.startswith("intarsia-read-ahead") for thread in threading.enumerate())


def test_a_shard_that_ends_early_names_the_tensor(case, monkeypatch):
    checkpoint, recipe = case
    manifest = manifest_of(checkpoint, recipe)
    monkeypatch.setattr(reader, "stamp", lambda status: ANY)
    shard = checkpoint.shards[-1]
    whole = shard.path.read_bytes()
    entries = sorted((one for one in checkpoint.tensors.values() if one.shard == shard.name), key=by_place)
    some = random.Random(7).sample([one for one in entries[1:] if one.nbytes > 1], 5)
    for entry in some:
        for size in (entry.begin, entry.begin + 1, entry.end - 1):
            os.truncate(shard.path, size)
            with pytest.raises(TruncatedError) as refusal:
                delivered(checkpoint, manifest)
            named = next(one for one in entries if one.name == refusal.value.where.partition(": ")[2])
            # Which of those behind the end is met first depends on the order in which weights are loaded.
            assert named.end > size
            assert ended()
            shard.path.write_bytes(whole)
    delivered(checkpoint, manifest)


def by_place(entry):
    return entry.begin, entry.end


@pytest.mark.parametrize("reads", [0, 1, 7, 40])
def test_a_shard_that_shrinks_while_it_is_read_is_refused(case, monkeypatch, reads):
    checkpoint, recipe = case
    manifest = manifest_of(checkpoint, recipe)
    preadv, lock, count = os.preadv, threading.Lock(), [0]

    def shrinking(descriptor, buffers, offset):
        with lock:
            count[0] += 1
            if count[0] == reads + 1:
                for shard in checkpoint.shards:
                    os.truncate(shard.path, shard.header_size + 8)
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", shrinking)
    with pytest.raises((ChangedError, TruncatedError)):
        delivered(checkpoint, manifest)
    assert ended()


@pytest.mark.parametrize("change", ["other bytes", "another file", "no file", "a folder"])
def test_a_shard_that_is_replaced_is_refused(case, change, tmp_path):
    checkpoint, recipe = case
    shard = checkpoint.shards[0]

    def replace():
        shutil.copyfile(shard.path, tmp_path / "other")
        if change == "other bytes":
            with shard.path.open("r+b") as file:
                file.seek(shard.size - 1)
                file.write(b"x")
            os.utime(shard.path, ns=(1, 1))
        elif change == "another file":
            os.replace(tmp_path / "other", shard.path)
        else:
            shard.path.unlink()
            if change == "a folder":
                shard.path.mkdir()

    with pytest.raises(IntarsiaError) as refusal:
        delivered(checkpoint, manifest_of(checkpoint, recipe), replace)
    assert shard.name in str(refusal.value)
    check_hides_nothing(refusal.value)
    assert ended()


NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    63,
    64,
    65,
    255,
    1 << 13,
    1 << 31,
    1 << 32,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
    1 << 64,
)
DTYPES = ("BF16", "F32", "F16", "U8", "U32", "F8_E4M3", "F8_E8M0", "I8", "F4", "BOOL", "F64")


def damaged(entry, entries, rng):
    """An entry that no header check has seen."""
    other = rng.choice(entries)
    match rng.randrange(9):
        case 0:
            return entry._replace(begin=entry.begin + rng.choice(NUMBERS))
        case 1:
            return entry._replace(end=entry.end + rng.choice(NUMBERS))
        case 2:
            return entry._replace(begin=other.begin, end=other.end)
        case 3:
            step = rng.choice((-1, 1, 7, 64, -64, 4096))
            return entry._replace(begin=entry.begin + step, end=entry.end + step)
        case 4:
            return entry._replace(dtype=rng.choice(DTYPES))
        case 5:
            return entry._replace(shape=other.shape)
        case 6:
            return entry._replace(shape=(*entry.shape[1:], *entry.shape[:1]))
        case 7:
            return entry._replace(shard=other.shard)
        case _:
            return entry._replace(begin=entry.end, end=entry.begin)


@pytest.mark.usefixtures("guarded")
@pytest.mark.parametrize("seed", range(4))
def test_entries_that_lie_are_refused_or_read_as_one_by_one(case, seed):
    checkpoint, recipe = case
    rng = random.Random(seed)
    manifest = manifest_of(checkpoint, recipe)
    entries = list(checkpoint.tensors.values())
    outcomes = set()
    for _ in range(12):
        changed = {
            entry.name: damaged(entry, entries, rng) for entry in rng.sample(entries, rng.randint(1, 3))
        }
        lying = dataclasses.replace(checkpoint, tensors={**checkpoint.tensors, **changed})
        found, single = outcome(delivered, lying, manifest), outcome(one_by_one, lying, manifest)
        refused = isinstance(found, IntarsiaError)
        if not refused:
            assert_same(found, single)
        elif not isinstance(single, IntarsiaError):
            # One by one only the bytes are read that are needed, of a tensor that claims to be longer.
            assert not all(as_long_as_it_says(entry) for entry in changed.values()), (changed, found)
        outcomes.add(refused)
        assert ended()
    assert True in outcomes


def as_long_as_it_says(entry):
    return entry.nbytes * 8 == prod(entry.shape) * BITS[entry.dtype]


def one_by_one(checkpoint, manifest):
    return load_weights(checkpoint, manifest=manifest)


def outcome(load, checkpoint, manifest):
    try:
        return load(checkpoint, manifest)
    except IntarsiaError as error:
        check_hides_nothing(error)
        return error


@pytest.mark.parametrize("recipe", [None, "spark"])
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_matrix_of_another_rank_is_refused_by_name(small, recipe, rank):
    checkpoint = small()
    name = next(name for name in checkpoint.tensors if name.endswith("0.self_attn.o_proj.weight"))
    entry = checkpoint.tensors[name]
    shape = (1, *entry.shape) if rank == 3 else (prod(entry.shape),) * rank
    lying = dataclasses.replace(
        checkpoint,
        tensors=checkpoint.tensors | {name: entry._replace(shape=shape, end=entry.begin + 2 * prod(shape))},
    )
    with pytest.raises((LoadError, SelectionError), match=name.removesuffix(".weight")):
        delivered(lying, manifest_of(lying, recipe))


@pytest.mark.parametrize("reads", [1, 7])
def test_a_shard_that_changes_while_it_is_read_is_refused(case, monkeypatch, reads):
    checkpoint, recipe = case
    manifest = manifest_of(checkpoint, recipe)
    preadv, lock, count = os.preadv, threading.Lock(), [0]

    def changing(descriptor, buffers, offset):
        with lock:
            count[0] += 1
            if count[0] == reads + 1:
                with checkpoint.shards[0].path.open("r+b") as file:
                    file.seek(-1, os.SEEK_END)
                    file.write(b"x")
                os.utime(checkpoint.shards[0].path, ns=(1, 1))
        return preadv(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", changing)
    with pytest.raises(ChangedError, match=checkpoint.shards[0].name):
        delivered(checkpoint, manifest)
    assert count[0] > reads
    assert ended()
