"""What a tuned configuration holds for: the device, the versions that compile and run, and the kernels."""

import hashlib
import importlib.metadata
import re
from functools import cache
from pathlib import Path

import msgspec
import torch

_DRIVER = Path("/proc/driver/nvidia/version")
KERNELS = Path(__file__).resolve().parents[1]
"""The folder of all kernels."""


class DeviceIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A device and what drives it."""

    name: str
    capability: str
    multiprocessors: int
    driver: str


class Versions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The libraries that compile and launch, and the CUDA that torch was built for."""

    torch: str
    triton: str
    cuda: str


def device_identity(device: torch.device) -> DeviceIdentity:
    """Of a device of this machine; one that is not CUDA is known by its type alone."""
    if device.type != "cuda":
        return DeviceIdentity(device.type, "", 0, "")
    found = torch.cuda.get_device_properties(device)
    return DeviceIdentity(
        found.name, f"{found.major}.{found.minor}", int(found.multi_processor_count), _driver()
    )


@cache
def versions() -> Versions:
    """Of what is installed; empty where it is not."""
    try:
        triton = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        triton = ""
    return Versions(str(torch.__version__), triton, str(torch.version.cuda or ""))


@cache
def sources_sha256(folder: Path = KERNELS) -> str:
    """One hash of all kernels' sources: names and bytes of the Python files of a folder, in order."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        content = path.read_bytes()
        total.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode())
        total.update(content)
    return total.hexdigest()


@cache
def _driver() -> str:
    """The version of the kernel's driver, where it says so."""
    try:
        found = re.search(r"Kernel Module\D*([\d.]+)", _DRIVER.read_text())
    except OSError:
        return ""
    return found[1] if found else ""
