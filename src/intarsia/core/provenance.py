"""What code ran and on which machine, for receipts."""

import os
import platform
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

LIBRARIES = ("torch", "numpy", "safetensors", "tokenizers", "triton", "fla-core", "nvidia-modelopt")


class Code(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The program: its version, its commit where it runs from a repository, and the libraries it found."""

    version: str
    commit: str | None
    python: str
    libraries: dict[str, str]


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
    return Code(_version("intarsia") or "unknown", _commit(), platform.python_version(), libraries)


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
    folder = Path(__file__).resolve().parents[3] / ".git"
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


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
