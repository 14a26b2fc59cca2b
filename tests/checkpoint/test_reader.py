"""Reading into memory the caller owns: exact sizes, short reads, files that change or end early."""

import os

import pytest
import torch

from intarsia.checkpoint import open_checkpoint, write_checkpoint
from intarsia.checkpoint.errors import (
    ChangedError,
    DtypeError,
    RangeError,
    ReadError,
    TensorMissingError,
    TruncatedError,
)
from intarsia.checkpoint.reader import staging_view
from tests.checkpoint.build import header_of, shard


@pytest.fixture
def checkpoint(tmp_path):
    values = torch.arange(600, dtype=torch.int32).reshape(20, 30)
    return write_checkpoint(tmp_path / "m", [("a.weight", values), ("b.weight", values.float())])


def test_short_reads_continue(checkpoint, monkeypatch):
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: real(fd, [views[0][:7]], at))
    with checkpoint.reader() as reader:
        assert torch.equal(reader.read("a.weight").flatten(), torch.arange(600, dtype=torch.int32))


def test_an_early_end_is_an_error(checkpoint, monkeypatch):
    monkeypatch.setattr(os, "preadv", lambda fd, views, at: 0)
    with checkpoint.reader() as reader, pytest.raises(TruncatedError, match=r"a\.weight.*2,400 bytes early"):
        reader.read("a.weight")


def test_what_the_system_refuses_is_an_error(checkpoint, monkeypatch):
    def refuse(descriptor, views, position):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "preadv", refuse)
    with checkpoint.reader() as reader, pytest.raises(ReadError, match="Input/output") as caught:
        reader.read("a.weight")
    assert caught.value.__context__ is None


@pytest.mark.parametrize("change", ["truncate", "touch", "replace", "remove"])
def test_a_file_that_changed_is_refused(checkpoint, change):
    path = checkpoint.shards[0].path
    with checkpoint.reader() as reader:
        reader.read("a.weight")
        if change == "truncate":
            os.truncate(path, 100)
        elif change == "touch":
            os.utime(path, ns=(1, 1))
        elif change == "replace":
            content = path.read_bytes()
            path.unlink()
            path.write_bytes(content)
    with checkpoint.reader() as reader:
        if change == "remove":
            path.unlink()
            with pytest.raises(ReadError):
                reader.read("a.weight")
        else:
            with pytest.raises(ChangedError, match="open the checkpoint again"):
                reader.read("a.weight")


def test_a_file_cut_while_it_is_open_is_refused(checkpoint):
    with checkpoint.reader() as reader:
        reader.read("a.weight")
        os.truncate(checkpoint.shards[0].path, 200)
        with pytest.raises(ChangedError):
            reader.read("a.weight")


def test_ranges_and_destinations_have_exact_sizes(checkpoint):
    entry = checkpoint.entry("a.weight")
    with checkpoint.reader() as reader:
        for begin, end in ((-1, 4), (0, 2401), (8, 4), (2404, 2404)):
            with pytest.raises(RangeError):
                reader.read_into(entry, bytearray(4), begin, end)
        for destination in (bytearray(3), torch.empty(2), b"1234", torch.empty(2, 2)[:, 0]):
            with pytest.raises(RangeError):
                reader.read_into(entry, destination, 0, 4)
        for rows in (range(21), range(-1, 3), range(0, 4, 2)):
            with pytest.raises(RangeError):
                reader.read_rows(entry, rows)
        with pytest.raises(RangeError):
            reader.read_rows(entry, range(1), range(31))
        reader.read_into(entry, bytearray(0), 8, 8)


def test_strided_memory_may_be_written_to(checkpoint):
    entry = checkpoint.entry("a.weight")
    stack = torch.zeros(3, 20, 30, dtype=torch.int32)
    with checkpoint.reader() as reader:
        reader.read_into(entry, stack[1])
    assert torch.equal(stack[1].flatten(), torch.arange(600, dtype=torch.int32))
    assert not stack[0].any()
    assert not stack[2].any()


def test_an_unknown_name_suggests_the_nearest(checkpoint):
    with checkpoint.reader() as reader, pytest.raises(TensorMissingError, match=r"nearest: .*a\.weight"):
        reader.read("aa.weight")


def test_types_torch_lacks_are_known_and_refused(tmp_path):
    shard(tmp_path / "model.safetensors", *header_of({"a": ("F4", (2, 4)), "b": ("F6_E2M3", (4, 4))}))
    checkpoint = open_checkpoint(tmp_path)
    with checkpoint.reader() as reader:
        with pytest.raises(DtypeError, match="F4, a sub-byte type"):
            reader.read("a")
        raw = bytearray(4)
        reader.read_into(checkpoint.entry("a"), raw)


def test_the_reader_keeps_few_files_open(tmp_path):
    tensors = [(f"t{number}", torch.full((4,), number)) for number in range(100)]
    checkpoint = write_checkpoint(tmp_path / "m", tensors, shard_size=1)
    assert len(checkpoint.shards) == 100
    before = len(os.listdir("/proc/self/fd"))
    with checkpoint.reader() as reader:
        for number in [*range(100), 0, 50]:
            assert reader.read(f"t{number}").tolist() == [number] * 4
        assert len(os.listdir("/proc/self/fd")) - before <= 64
    assert len(os.listdir("/proc/self/fd")) == before


def test_staging_view_lies_like_the_file(checkpoint):
    entry = checkpoint.entry("b.weight")
    buffer = torch.empty(400 + 63, dtype=torch.uint8)
    with checkpoint.reader() as reader:
        for begin in (0, 4, 12, 60):
            view = staging_view(buffer, entry.begin + begin, entry.begin + begin + 400)
            assert (view.data_ptr() - entry.begin - begin) % 64 == 0
            reader.read_into(entry, view, begin, begin + 400)
    with pytest.raises(RangeError):
        staging_view(torch.empty(400, dtype=torch.uint8)[:10], entry.begin, entry.begin + 400)
