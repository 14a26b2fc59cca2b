"""What a figure was measured on, and how it was set: what two runs must share to be compared."""

from typing import Any

import msgspec
import torch

from intarsia.core.provenance import code
from intarsia.core.provenance import machine as host


def machine(device: str | torch.device = "cpu") -> dict[str, Any]:
    """The machine, the libraries that compute, threads and the device, as JSON values."""
    found: dict[str, Any] = msgspec.to_builtins(host())
    found |= {
        "python": code().python,
        "libraries": dict(code().libraries),
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
        }
    return found


def clocks(device: str | torch.device = "cpu") -> dict[str, Any]:
    """Clocks in MHz, power in watts and temperature of a CUDA device now; what is not known is left out."""
    place = torch.device(device)
    if place.type != "cuda":
        return {}
    readings = {
        "clock_mhz": torch.cuda.clock_rate,
        "temperature_c": torch.cuda.temperature,
        "power_mw": torch.cuda.power_draw,
    }
    found = {}
    for name, read in readings.items():
        try:
            found[name] = int(read(place))
        except (RuntimeError, ModuleNotFoundError, AttributeError):
            continue
    return found


def synchronize(device: str | torch.device) -> None:
    """Wait until a device has done what it was given; nothing on the CPU."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
