"""The file of tuned configurations: where it lies, what makes it valid, reading and writing it."""

import errno
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec
import torch

from intarsia.core.errors import Violation
from intarsia.kernels.tuning.active import Found, Table
from intarsia.kernels.tuning.candidates import Site, configurations, described, operations
from intarsia.kernels.tuning.document import MAX_BYTES, Document, Entry, decode, encode, sealed
from intarsia.kernels.tuning.errors import TuningError
from intarsia.kernels.tuning.identity import DeviceIdentity, device_identity, sources_sha256, versions


def default_path(device: torch.device) -> Path:
    """The file of a device's name in the cache folder: $XDG_CACHE_HOME/intarsia/tuning, or that below
    ~/.cache. Raises TuningError where neither is known.
    """
    root = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(root):
        root = os.path.expanduser("~/.cache")
    if not os.path.isabs(root):
        raise TuningError(
            "~/.cache", [Violation("unreadable", "~", "no home folder", "HOME or XDG_CACHE_HOME")]
        )
    folder = Path(root)
    return folder / "intarsia" / "tuning" / f"{_stem(device_identity(device))}.json"


def read(path: str | os.PathLike[str], device: torch.device) -> Table:
    """The configurations of a file, if all of it holds on this device.

    Raises TuningError with every reason: a file that cannot be read or is not in its form, another checksum,
    device, version or kernel, and each operation, site or configuration that there is not.
    """
    where = os.fspath(path)
    try:
        with open(path, "rb", opener=_open_regular) as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        raise TuningError(where, [Violation("unreadable", where, _reason(error), "a file")]) from None
    document = decode(data, where)
    violations = [*_elsewhere(document, device)]
    found: dict[Site, Found] = {}
    for entry in document.entries:
        site = Site(entry.operation, tuple(entry.formats), tuple(entry.shape), entry.rows)
        broken = _broken(entry, site, found)
        if broken is not None:
            violations.append(broken)
        else:
            found[site] = _found(entry, site)
    if violations:
        raise TuningError(where, violations)
    return Table(where, document.created, found)


def there(path: Path) -> bool:
    """Whether something has that name; true also where that cannot be told, which reading then says."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError):
        pass
    return True


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raises TuningError if `write` could not give a file this name: for before a search of minutes."""
    where = os.fspath(path)
    try:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        partial = _partial(target)
        partial.touch()
        partial.unlink()
    except (OSError, ValueError) as error:
        violation = Violation("unwritable", where, _reason(error), "a place for a file")
        raise TuningError(where, [violation]) from None


def write(document: Document, path: str | os.PathLike[str]) -> Path:
    """Write a document with its checksum, at once: into another file that then gets the name."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = _partial(target)
    try:
        with partial.open("wb") as file:
            file.write(encode(sealed(document)))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return target


def _partial(target: Path) -> Path:
    return target.with_name(f".{target.name}.partial-{os.getpid()}")


def _open_regular(path: str, flags: int) -> int:
    """Opens files alone: a pipe would wait for whoever writes to it."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return descriptor


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _elsewhere(document: Document, device: torch.device) -> Iterator[Violation]:
    """What was another when the file was made."""
    pairs = {
        "device": (document.device, device_identity(device)),
        "version": (document.versions, versions()),
    }
    for rule, (theirs, ours) in pairs.items():
        mine = msgspec.to_builtins(ours)
        for name, value in msgspec.to_builtins(theirs).items():
            if value != mine[name]:
                yield Violation(f"other-{rule}", name, str(value), str(mine[name]))
    if document.kernels_sha256 != sources_sha256():
        yield Violation("other-kernels", "sources", document.kernels_sha256[:16], sources_sha256()[:16])


def _broken(entry: Entry, site: Site, found: dict[Site, Found]) -> Violation | None:
    """Why an entry means nothing here."""
    if entry.operation not in operations():
        known = f"one of {', '.join(operations())}"
        return Violation("unknown-operation", "operation", entry.operation[:200], known)
    tunable = configurations(entry.operation)
    if site.rows not in tunable.buckets:
        return Violation(
            "unknown-rows", entry.operation, str(site.rows), f"one of {', '.join(map(str, tunable.buckets))}"
        )
    if reason := tunable.refuse(site):
        return Violation("unknown-shape", entry.operation, reason[:200])
    if site in found:
        return Violation("twice", str(site), "two configurations", "one")
    if not any(_same(described(one), entry.configuration) for one in tunable.candidates(site)):
        return Violation("no-candidate", str(site), str(entry.configuration)[:200], "one of its candidates")
    return None


def _found(entry: Entry, site: Site) -> Found:
    candidates = configurations(entry.operation).candidates(site)
    chosen = next(one for one in candidates if _same(described(one), entry.configuration))
    return Found(chosen, entry.us, entry.spread_us, entry.default_us, entry.default_spread_us)


def _same(a: object, b: object) -> bool:
    """Equal as JSON, which tells true from 1."""
    return msgspec.json.encode(a, order="sorted") == msgspec.json.encode(b, order="sorted")


def _stem(device: DeviceIdentity) -> str:
    return re.sub(r"[^a-z0-9]+", "-", device.name.lower()).strip("-") or "device"
