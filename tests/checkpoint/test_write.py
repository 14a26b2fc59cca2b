"""Writing is all or nothing, and never over something that exists."""

import json
import os
import shutil
from collections import namedtuple

import pytest
import torch

from intarsia.checkpoint import open_checkpoint, write_checkpoint
from intarsia.checkpoint.errors import DiskSpaceError, DtypeError, TargetExistsError, WriteError

ONE = [("a", torch.ones(4))]
TWO = [*ONE, ("b", torch.ones(4))]


def left_over(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("kind", ["file", "folder", "dangling link"])
def test_nothing_is_replaced(tmp_path, kind):
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("mine")
    elif kind == "folder":
        out.mkdir()
    else:
        out.symlink_to("nowhere")
    with pytest.raises(TargetExistsError):
        write_checkpoint(out, ONE)
    assert left_over(tmp_path) == ["out"]


def test_a_target_that_appears_meanwhile_is_not_replaced(tmp_path):
    def tensors():
        yield "a", torch.ones(4)
        (tmp_path / "out").mkdir()

    with pytest.raises(TargetExistsError):
        write_checkpoint(tmp_path / "out", tensors())
    assert left_over(tmp_path) == ["out"]
    assert left_over(tmp_path / "out") == []


@pytest.mark.parametrize("error", [RuntimeError("mine"), KeyboardInterrupt()], ids=repr)
def test_a_failing_source_leaves_nothing_behind(tmp_path, error):
    def tensors():
        yield "a", torch.ones(4)
        yield "b", torch.ones(4)
        raise error

    with pytest.raises(type(error)):
        write_checkpoint(tmp_path / "out", tensors(), shard_size=1)
    assert left_over(tmp_path) == []


def test_a_full_disk_is_named_before_a_shard_is_written(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(0, 0, 1 << 20))
    with pytest.raises(DiskSpaceError, match=r"0\.00 GiB free"):
        write_checkpoint(tmp_path / "out", ONE)
    assert left_over(tmp_path) == []


def test_an_error_of_the_system_is_a_write_error(tmp_path, monkeypatch):
    def refuse(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(WriteError, match="No space left"):
        write_checkpoint(tmp_path / "out", ONE)
    assert left_over(tmp_path) == []


@pytest.mark.parametrize(
    ("tensors", "options", "error"),
    [
        ([], {}, WriteError),
        ([*ONE, *ONE], {}, WriteError),
        ([("", torch.ones(1))], {}, WriteError),
        ([("__metadata__", torch.ones(1))], {}, WriteError),
        ([("a\n", torch.ones(1))], {}, WriteError),
        ([("a", torch.ones([1] * 9))], {}, WriteError),
        ([("a", torch.ones(1, dtype=torch.complex128))], {}, DtypeError),
        (ONE, {"shard_name": lambda index, count: "../x.safetensors"}, WriteError),
        (ONE, {"shard_name": lambda index, count: "x.bin"}, WriteError),
        (
            [*ONE, ("b", torch.ones(4))],
            {"shard_name": lambda i, n: "x.safetensors", "shard_size": 1},
            WriteError,
        ),
        (ONE, {"extra_files": {"../x": b""}}, WriteError),
    ],
)
def test_what_no_reader_accepts_is_not_written(tmp_path, tensors, options, error):
    with pytest.raises(error):
        write_checkpoint(tmp_path / "out", tensors, **options)
    assert left_over(tmp_path) == []


def test_index_configuration_and_other_files(tmp_path):
    (tmp_path / "LICENSE").write_text("free")
    tensors = [(f"t{number}", torch.full((8,), float(number))) for number in range(5)]
    write_checkpoint(
        tmp_path / "new" / "out",
        tensors,
        config={"model_type": "x"},
        shard_size=70,
        shard_name=lambda index, count: f"tensors/model-{index:05d}-of-{count:05d}.safetensors",
        extra_files={"notes/a.txt": b"x", "LICENSE": tmp_path / "LICENSE"},
        metadata={"format": "pt", "made": "here"},
    )
    out = tmp_path / "new" / "out"
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 160
    assert sorted(set(index["weight_map"].values())) == [
        f"tensors/model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)
    ]
    assert (out / "LICENSE").read_text() == "free"
    assert (out / "notes" / "a.txt").read_bytes() == b"x"
    checkpoint = open_checkpoint(out)
    assert checkpoint.config == {"model_type": "x"}
    assert checkpoint.shards[0].metadata == {"format": "pt", "made": "here"}
    assert checkpoint.weight_bytes == sum(path.stat().st_size for path in out.glob("tensors/*"))


def test_every_tensor_lies_aligned(tmp_path):
    tensors = [
        ("odd", torch.ones(3, dtype=torch.uint8)),
        ("half", torch.ones(5).half()),
        ("wide", torch.ones(7).double()),
    ]
    checkpoint = write_checkpoint(tmp_path / "out", tensors)
    assert checkpoint.shards[0].header_size % 64 == 0
    for name, tensor in tensors:
        assert checkpoint.entry(name).begin % tensor.element_size() == 0


def test_the_same_tensors_give_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        write_checkpoint(tmp_path / name, [("x", torch.arange(9)), ("y", torch.arange(3).half())])
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (
        tmp_path / "b" / "model.safetensors"
    ).read_bytes()
