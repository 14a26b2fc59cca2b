"""Devices by name."""

import torch

from intarsia.core.errors import UsageError


def usable_device(device: str | torch.device) -> torch.device:
    """The device of a name; UsageError for one that this machine lacks."""
    problem = ""
    try:
        place = torch.device(device)
    except RuntimeError:
        problem = "no device name"
    else:
        if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
            problem = f"{torch.cuda.device_count()} CUDA devices"
    if problem:
        raise UsageError(
            "device", found=f"{device} ({problem})", expected="cpu or a CUDA device of this machine"
        )
    return place
