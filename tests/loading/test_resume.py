"""An export that is stopped at any moment leaves nothing under its name, and goes on to the same bytes."""

import errno
import gc
import hashlib
import json
import os
import random
import resource
import signal
import warnings

import pytest
from safetensors import safe_open

from intarsia.checkpoint import open_checkpoint
from intarsia.checkpoint.errors import ChangedError, DiskSpaceError, TargetExistsError, WriteError
from intarsia.loading import export
from intarsia.loading.errors import ResumeError, SourceChangedError
from intarsia.loading.export import convert

BOUNDARIES = ("pwrite", "fsync", "replace", "rename", "unlink", "mkdir", "rmdir", "posix_fallocate")
KILLS = 20
SETTINGS = {"recipe": "fp4-local", "csf": "slab", "shard_size": 1 << 17}


def hashes(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def on_boundary(monkeypatch, act):
    """Calls `act` before every step that changes the disk."""
    for name in BOUNDARIES:
        original = getattr(os, name)

        def step(*arguments, original=original, **options):
            act()
            return original(*arguments, **options)

        monkeypatch.setattr(os, name, step)


def in_a_child(work):
    """Runs `work` in a forked process; returns its exit status, negative for a signal."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # forking beside other threads; the child is short
        child = os.fork()
    if child == 0:
        gc.disable()  # what other tests have left may wait for threads, and those are not here
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


@pytest.fixture
def finished(small, tmp_path):
    """A source, and the hashes of its export done in one go."""
    source = small()
    out = convert(source.path, tmp_path / "whole", **SETTINGS)
    assert len(out.shards) > 8
    return source, hashes(out.path)


def test_every_kill_is_survived(finished, tmp_path, monkeypatch):
    source, expected = finished
    steps = 0

    def count():
        nonlocal steps
        steps += 1

    with monkeypatch.context() as patch:
        on_boundary(patch, count)
        convert(source.path, tmp_path / "counted", **SETTINGS)
    assert steps > 100
    moments = random.Random(20).sample(range(steps), KILLS - 4)
    for number, moment in enumerate([0, 1, *moments, steps - 2, steps - 1]):
        out = tmp_path / f"out-{number}"

        def killed(moment=moment, out=out):
            left = moment

            def act():
                nonlocal left
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left -= 1

            on_boundary(monkeypatch, act)
            convert(source.path, out, **SETTINGS)

        assert in_a_child(killed) == -signal.SIGKILL
        if out.exists():  # killed after the rename, while cleaning up
            assert hashes(out) == expected
        convert(source.path, out, resume=True, **SETTINGS)
        assert hashes(out) == expected, moment
        assert not list(tmp_path.glob(f".{out.name}*"))


def test_a_second_kill_while_resuming(finished, tmp_path, monkeypatch):
    source, expected = finished
    out = tmp_path / "out"
    for _ in range(3):

        def killed():
            left = 60

            def act():
                nonlocal left
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

            on_boundary(monkeypatch, act)
            convert(source.path, out, resume=True, **SETTINGS)

        in_a_child(killed)
    convert(source.path, out, resume=True, **SETTINGS)
    assert hashes(out) == expected


def test_finished_shards_are_not_written_again(finished, tmp_path, monkeypatch):
    source, expected = finished
    out = tmp_path / "out"
    written = []
    original = export._Export._write

    def write(self, space, number, *rest):
        if len(written) == 5:
            raise KeyboardInterrupt
        written.append(number)
        return original(self, space, number, *rest)

    monkeypatch.setattr(export._Export, "_write", write)
    with pytest.raises(KeyboardInterrupt):
        convert(source.path, out, **SETTINGS)
    written[:] = [None] * 6
    convert(source.path, out, resume=True, **SETTINGS)
    assert written[6] == 5
    assert hashes(out) == expected


def test_an_unfinished_export_is_never_taken_over_in_silence(finished, tmp_path, monkeypatch):
    source, _ = finished
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(export._Export, "_write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            convert(source.path, out, **SETTINGS)
    assert not out.exists()
    with pytest.raises(ResumeError, match="resume it, or remove"):
        convert(source.path, out, **SETTINGS)
    with pytest.raises(ResumeError, match="another manifest"):
        convert(source.path, out, resume=True, **(SETTINGS | {"recipe": "spark"}))
    with pytest.raises(ResumeError, match="shard_size"):
        convert(source.path, out, resume=True, **(SETTINGS | {"shard_size": 1 << 18}))
    file = source.shards[0].path
    os.utime(file, ns=(1, 1))
    with pytest.raises(ResumeError, match="another source"):
        convert(source.path, out, resume=True, **SETTINGS)


def test_two_processes_do_not_share_a_workspace(finished, tmp_path, monkeypatch):
    source, _ = finished
    out = tmp_path / "out"
    seen = []

    def write(self, space, *_):
        with pytest.raises(ResumeError, match="another process"):
            convert(source.path, out, resume=True, **SETTINGS)
        seen.append(space)
        raise KeyboardInterrupt

    monkeypatch.setattr(export._Export, "_write", write)
    with pytest.raises(KeyboardInterrupt):
        convert(source.path, out, **SETTINGS)
    assert seen


@pytest.mark.parametrize("call", ["pwrite", "posix_fallocate", "fsync"])
def test_a_disk_that_fills_up(finished, tmp_path, monkeypatch, call):
    source, expected = finished
    out = tmp_path / "out"
    left, original = 7, getattr(os, call)

    def full(*arguments):
        nonlocal left
        left -= 1
        if left == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(WriteError, match="No space left"):
            convert(source.path, out, **SETTINGS)
    assert not out.exists()
    convert(source.path, out, resume=True, **SETTINGS)
    assert hashes(out) == expected


def test_a_limit_of_the_operating_system(finished, tmp_path):
    source, _ = finished
    out = tmp_path / "out"

    def work():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, 1 << 15))
        try:
            convert(source.path, out, **SETTINGS)
        except WriteError:
            os._exit(7)

    assert in_a_child(work) == 7
    assert not out.exists()


def test_too_little_room_is_seen_before_a_weight_is_read(finished, tmp_path, monkeypatch):
    source, _ = finished
    monkeypatch.setattr(export.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1 << 20}))
    with pytest.raises(DiskSpaceError, match="GiB free"):
        convert(source.path, tmp_path / "out", **SETTINGS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small", "whole"]


@pytest.mark.parametrize(
    ("after", "error", "change"),
    [
        (3, ChangedError, os.utime),
        (None, SourceChangedError, os.utime),
        (None, SourceChangedError, os.unlink),
    ],
)
def test_a_source_that_changes_while_it_is_read(finished, tmp_path, monkeypatch, after, error, change):
    source, _ = finished
    count = len(export.shards(list(export.outputs(*_parts(source))), SETTINGS["shard_size"]))
    original = export._Export._write
    at = count - 1 if after is None else after

    def write(self, space, number, *rest):
        record = original(self, space, number, *rest)
        if number == at:
            for shard in source.shards:
                change(shard.path)
        return record

    monkeypatch.setattr(export._Export, "_write", write)
    with pytest.raises(error):
        convert(source.path, tmp_path / "out", **SETTINGS)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small", "whole"]


def _parts(source):
    from intarsia.checkpoint import modules

    selection = export.select(source, recipe="fp4-local", manifest=None, csf="slab")
    return source, modules(source), selection


def test_what_is_there_is_not_replaced_when_resuming(finished, tmp_path):
    source, _ = finished
    with pytest.raises(TargetExistsError):
        convert(source.path, tmp_path / "whole", resume=True, **SETTINGS)


def test_the_safetensors_library_reads_the_shards(finished, tmp_path):
    out = open_checkpoint(tmp_path / "whole")
    record = json.loads((out.path / "conversion.json").read_text())
    assert record["tensors"].keys() == out.tensors.keys()
    with out.reader() as reader:
        for shard in out.shards:
            with safe_open(shard.path, framework="pt") as theirs:
                for name in theirs.keys():  # noqa: SIM118  (not a mapping)
                    ours = reader.read(name)
                    found = theirs.get_tensor(name)
                    assert found.shape == ours.shape
                    data = ours.reshape(-1).view(export.torch.uint8)
                    assert export.torch.equal(found.reshape(-1).view(export.torch.uint8), data)
                    assert hashlib.sha256(data.numpy()).hexdigest() == record["tensors"][name]


def test_wide_types_lie_aligned(finished, tmp_path):
    out = open_checkpoint(tmp_path / "whole")
    for entry in out.tensors.values():
        width = {"F32": 4, "U32": 4, "BF16": 2}.get(entry.dtype, 1)
        assert entry.begin % width == 0, entry
