"""The time a step cannot beat: the bytes it must read, at the speed this machine reads them."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import torch

from intarsia.evidence.machine import synchronize
from intarsia.evidence.speed.cells import Cell
from intarsia.formats import Stored
from intarsia.kernels.experts import ExpertStack, PackedExperts
from intarsia.models.glm5_next.model import Glm5NextModel

REPEATS = 5
LEAST_BUFFER = 1 << 20


@dataclass(frozen=True, slots=True)
class Floor:
    """Of one decode cell: `bytes` of weights that a step reads at least once, `bandwidth` in bytes a second
    measured by summing a buffer as large, and what follows: seconds a step."""

    cell: str
    bytes: int
    bandwidth: float
    seconds: float


def floors(model: Glm5NextModel, cells: Sequence[Cell]) -> tuple[Floor, ...]:
    """Floors of the plain decode cells. Caches and activations are not counted; with them they are higher."""
    wanted = [cell for cell in cells if cell.kind == "decode" and not cell.drafts]
    if not wanted:
        return ()
    largest = max(step_bytes(model, cell.size) for cell in wanted)
    bandwidth = read_bandwidth(largest, model.device)
    return tuple(
        Floor(cell.name, count, bandwidth, count / bandwidth)
        for cell in wanted
        for count in [step_bytes(model, cell.size)]
    )


def step_bytes(model: Glm5NextModel, streams: int) -> int:
    """Bytes of weights that a step of one row for each of `streams` streams reads.

    Of E experts, k a row, a step of n rows meets E (1 - (1 - k/E)^n) on average if routing is even.
    """
    config = model.config
    share = 1 - (1 - config.num_experts_per_tok / config.n_routed_experts) ** streams
    total = 0.0
    for part in (model.weights.head, model.weights.norm, *model.weights.layers):
        for weight in weights_of(part):
            # Only stacks of experts have three dimensions and a number format.
            routed = not isinstance(weight, torch.Tensor) and len(weight.shape) == 3
            total += weight.nbytes * (share if routed else 1.0)
    return int(total)


def read_bandwidth(size: int, device: torch.device) -> float:
    """Bytes a second of summing `size` bytes as 64-bit integers, the best of five."""
    buffer = torch.ones(max(size, LEAST_BUFFER) // 8, dtype=torch.int64, device=device)
    best = float("inf")
    for _ in range(REPEATS):
        synchronize(device)
        begin = time.perf_counter()
        buffer.sum()
        synchronize(device)
        best = min(best, time.perf_counter() - begin)
    return buffer.nbytes / best


def weights_of(part: object) -> Iterator[ExpertStack]:
    """Every weight under a part of a network's weights."""
    if isinstance(part, Stored | PackedExperts | torch.Tensor):
        yield part
    elif part is not None:
        for field in fields(part):  # type: ignore[arg-type]
            yield from weights_of(getattr(part, field.name))
