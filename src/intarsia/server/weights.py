"""How every module is stored and how it runs, as /weights tells it."""

from collections.abc import Iterator

import torch

from intarsia.loading.arrange import Arranged, Arrangement
from intarsia.server.service import WeightRow

KERNEL = "reference"


def weight_rows(arrangement: Arrangement, device: str, dtype: str) -> tuple[WeightRow, ...]:
    """One row a run-time weight, in the network's order."""
    return tuple(_rows(arrangement, torch.device(device).type, dtype))


def _rows(arrangement: Arrangement, device: str, dtype: str) -> Iterator[WeightRow]:
    where = "a CPU" if device == "cpu" else f"this {device} device"
    for weight in arrangement.weights:
        run = _form(weight)
        if run in ("F32", "BF16", "F16"):
            reason = f"computed in {dtype} as the network's definition has it"
        else:
            reason = f"no kernel that reads {run} on {where}: decoded to {dtype} inside the operation"
        stored = sorted(_sources(arrangement, weight)) or [run]
        yield WeightRow(weight.module.name, " + ".join(stored), run, KERNEL, reason)


def _form(weight: Arranged) -> str:
    """The form a weight is kept in while it runs."""
    if weight.format is not None:
        return weight.format
    names = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
    return next((names.get(slot.dtype, str(slot.dtype)) for slot in weight.slots.values()), "")


def _sources(arrangement: Arrangement, weight: Arranged) -> set[str]:
    """The forms its parts have in the checkpoint."""
    found = set()
    for name in weight.module.sources:
        module = arrangement.modules.get(name)
        if module is not None and module.format is not None:
            found.add(module.format)
    if not found:
        found = {entry.dtype for piece in weight.pieces for entry in piece.entries}
    return found
