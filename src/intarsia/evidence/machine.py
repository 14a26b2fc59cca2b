"""What a figure was measured on, and how it was set: what two runs must share to be compared."""

import os
from pathlib import Path
from typing import Any

import msgspec
import torch

from intarsia.core.errors import UsageError
from intarsia.core.provenance import code
from intarsia.core.provenance import machine as host
from intarsia.kernels.tuning import installed


def machine(device: str | torch.device = "cpu") -> dict[str, Any]:
    """The machine, the libraries that compute, threads and the device, as JSON values."""
    found: dict[str, Any] = msgspec.to_builtins(host())
    running = code()
    found |= {
        "python": running.python,
        "libraries": dict(running.libraries),
        "threads": torch.get_num_threads(),
        "device": str(device),
    }
    place = torch.device(device)
    if place.type == "cuda":
        properties = torch.cuda.get_device_properties(place)
        found["gpu"] = {
            "name": properties.name,
            "memory_bytes": properties.total_memory,
            "capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
            "cuda": torch.version.cuda,
            "kernels": _configured(place),
        }
    return found


def clocks(device: str | torch.device = "cpu") -> dict[str, Any]:
    """How the machine runs now: processor clocks in MHz and the load others put on it; of a CUDA device its
    clock, temperature and power in milliwatts. What is not known is left out."""
    place = torch.device(device)
    state = device_state(place) if place.type == "cuda" else {}
    return {"load": list(os.getloadavg()), **_processor_clocks(), **state}


def device_state(device: torch.device) -> dict[str, int]:
    """A CUDA device's clock, temperature and power now, as far as they are known."""
    found: dict[str, int] = {}
    readings = {
        "clock_mhz": torch.cuda.clock_rate,
        "temperature_c": torch.cuda.temperature,
        "power_mw": torch.cuda.power_draw,
    }
    for name, read in readings.items():
        try:
            found[name] = int(read(device))
        except (RuntimeError, ModuleNotFoundError, AttributeError):
            continue
    return found


def cuda_device(name: str, *, action: str) -> torch.device:
    """The device that `cuda` or `cuda:N` names. Raises UsageError, saying what to do, for any other."""
    kind, _, number = name.partition(":")
    known = kind == "cuda" and (not number or number.isdigit())
    if not known or int(number or 0) >= torch.cuda.device_count():
        raise UsageError(
            "device",
            found=f"{name}, and {torch.cuda.device_count()} CUDA devices",
            expected="a CUDA device of this machine",
            action=action,
        )
    return torch.device("cuda", int(number or 0))


def _configured(device: torch.device) -> str:
    """Whether the kernels run with tuned configurations now, and since when those are measured."""
    table = installed(device)
    return "defaults" if table is None else f"tuned {table.created} at {len(table.found)} sites"


def synchronize(device: str | torch.device) -> None:
    """Wait until a device has done what it was given; nothing on the CPU."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def _processor_clocks() -> dict[str, float]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return {}
    found = [float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
    return {"processor_mhz_low": min(found), "processor_mhz_high": max(found)} if found else {}
