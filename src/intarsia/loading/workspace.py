"""The hidden folder beside an export in progress: what is finished is kept, so that a killed export goes on.

.NAME.partial/
    state.json      what is being written, from what, with which settings
    done/00003.json a finished shard: its size and the sha256 of its tensors
    checkpoint/     becomes NAME in one rename, when everything is there
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from intarsia.checkpoint.write import refuse_existing
from intarsia.core.json import JsonError, parse_object
from intarsia.loading.errors import ResumeError

Json = dict[str, Any]


class Workspace:
    """One export in progress. Every file appears complete or not at all."""

    def __init__(self, out: Path, root: Path) -> None:
        self.out = out
        self.root = root
        self.checkpoint = root / "checkpoint"

    def finished(self, number: int) -> Json | None:
        """The record of a finished shard, when its file still has the size it says."""
        path = self.root / "done" / f"{number:05d}.json"
        if not path.exists():
            return None
        record = parse_object(path.read_bytes(), str(path))
        file = self.checkpoint / record["file"]
        return record if file.is_file() and file.stat().st_size == record["size"] else None

    def finish(self, number: int, writing: Path, record: Json) -> None:
        """Gives a written shard its name, then notes it as finished."""
        target = self.checkpoint / record["file"]
        target.parent.mkdir(parents=True, exist_ok=True)
        writing.replace(target)
        flush_folder(target.parent)
        self.write(self.root / "done" / f"{number:05d}.json", canonical(record))

    def writing(self) -> Path:
        """Where a shard is written before it has a name; what an earlier attempt left there is gone."""
        path = self.root / "writing"
        path.unlink(missing_ok=True)
        return path

    def write(self, path: Path, content: bytes) -> None:
        """A small file, complete or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.root / "file"
        with partial.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        flush_folder(path.parent)

    def publish(self) -> None:
        """The one step in which the export appears under its name."""
        for folder, _, _ in os.walk(self.checkpoint):
            flush_folder(Path(folder))
        refuse_existing(self.out)
        self.checkpoint.rename(self.out)
        flush_folder(self.out.parent)
        self.remove()

    def remove(self) -> None:
        """Nothing of the export in progress is left."""
        shutil.rmtree(self.root, ignore_errors=True)


@contextmanager
def workspace(out: Path, state: Mapping[str, Any], *, resume: bool) -> Iterator[Workspace]:
    """Opens the workspace of an export, a new one or, with `resume`, the one that is there.

    Raises ResumeError when there is one and `resume` is false, when it belongs to another export (settings,
    source or version differ), or when a process is at work in it.
    """
    root = out.with_name(f".{out.name}.partial")
    out.parent.mkdir(parents=True, exist_ok=True)
    there = os.path.lexists(root)
    if there and not resume:
        raise ResumeError(
            str(root),
            found="an export that was not finished",
            expected="none",
            action="resume it, or remove the folder",
        )
    root.mkdir(exist_ok=True)
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ResumeError(str(root), found="another process at work", expected="one at a time") from None
        space = Workspace(out, root)
        _same_state(space, canonical(dict(state)))
        space.checkpoint.mkdir(exist_ok=True)
        yield space
    finally:
        os.close(descriptor)


def _same_state(space: Workspace, state: bytes) -> None:
    path = space.root / "state.json"
    if not path.exists():
        # Killed before the state was written: nothing else can be there yet.
        space.write(path, state)
        return
    found = path.read_bytes()
    if found == state:
        return
    with contextlib.suppress(JsonError):
        was, now = parse_object(found, str(path)), parse_object(state, "state")
        differing = [key for key in now if was.get(key) != now[key]]
        raise ResumeError(
            str(space.root),
            found="an export with another " + ", ".join(differing or ["state"]),
            expected="the export that was begun",
            action="use the same settings and source, or remove the folder",
        )
    raise ResumeError(str(path), found="an unreadable state", expected="JSON", action="remove the folder")


def canonical(document: Mapping[str, Any]) -> bytes:
    """Equal documents as equal bytes."""
    text = json.dumps(document, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False)
    return (text + "\n").encode()


def digest(document: Mapping[str, Any]) -> str:
    """sha256 of a document's canonical bytes."""
    return hashlib.sha256(canonical(document)).hexdigest()


def flush_folder(folder: Path) -> None:
    """Makes renames in a folder durable; some file systems cannot, which is not an error."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
