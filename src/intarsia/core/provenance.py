"""What code ran and on which machine, for receipts."""

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

LIBRARIES = ("torch", "numpy", "safetensors", "tokenizers", "triton", "fla-core", "nvidia-modelopt")


PACKAGE = Path(__file__).resolve().parents[1]
ELSEWHERE = frozenset(["__pycache__", "demo"])
"""Folders whose files are not hashed: compiled ones, and the demo model, whose files receipts name."""
GIT_SECONDS = 10.0


class Code(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The program: its version, the commit that is checked out where it runs from a repository, and the
    libraries it found.

    `sources_sha256` names the code in every case: it covers all files of the package, the demo model apart.
    `changed`: whether these differ from the commit's; None without a commit, and where git could not tell.
    Receipts of schema 1 have neither.
    """

    version: str
    commit: str | None
    python: str
    libraries: dict[str, str]
    sources_sha256: str | None = None
    changed: bool | None = None


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The machine, without its name. `accelerators` are device names, one entry a device."""

    system: str
    processor: str
    cores: int
    memory: int
    accelerators: list[str]


@lru_cache(maxsize=1)
def code() -> Code:
    """The code that is running."""
    libraries = {name: found for name in LIBRARIES if (found := _version(name)) is not None}
    commit = _commit()
    return Code(
        version=_version("intarsia") or "unknown",
        commit=commit,
        python=platform.python_version(),
        libraries=libraries,
        sources_sha256=sources_sha256(),
        changed=None if commit is None else _changed(),
    )


@lru_cache(maxsize=1)
def sources_sha256() -> str:
    """The hash of this package's files, as they lie on disk when it is first asked for."""
    paths = (path for path in PACKAGE.rglob("*") if path.is_file())
    here = [path for path in paths if not ELSEWHERE & set(path.relative_to(PACKAGE).parts)]
    return files_sha256(PACKAGE, here)


def files_sha256(folder: Path, paths: Iterable[Path]) -> str:
    """One hash of files: their names in a folder and their bytes, in the order of their names."""
    total = hashlib.sha256()
    for path in sorted(paths):
        content = path.read_bytes()
        total.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode())
        total.update(content)
    return total.hexdigest()


@lru_cache(maxsize=1)
def machine() -> Machine:
    """The machine it is running on."""
    import torch

    devices = range(torch.cuda.device_count())
    return Machine(
        system=f"{platform.system()} {platform.release()}",
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        accelerators=[torch.cuda.get_device_name(device) for device in devices],
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit that is checked out, read from the repository's own files; None outside of one."""
    folder = PACKAGE.parents[1] / ".git"
    try:
        head = (folder / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head
        name = head.removeprefix("ref: ")
        if (folder / name).is_file():
            return (folder / name).read_text().strip()
        for line in (folder / "packed-refs").read_text().splitlines():
            if line.endswith(f" {name}"):
                return line.split(" ")[0]
    except OSError:
        return None
    return None


def _changed() -> bool | None:
    """Whether git finds the package's files other than the commit's, or more of them."""
    words = ["git", "--no-optional-locks", "status", "--porcelain", "--untracked-files=all", "--", "."]
    try:
        told = subprocess.run(words, cwd=PACKAGE, capture_output=True, timeout=GIT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return bool(told.stdout.strip())


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
