"""Scattering bytes in Triton's interpreter: run by `interpreting`.

Prints true when every byte is in its place and no other has changed.
"""

import json

import numpy as np
import torch
from torch import Tensor

from intarsia.kernels import scatter as operation


def fine(device: str = "cpu", room: Tensor | None = None) -> bool:
    """Parts of any length and any two alignments, some longer than a program takes."""
    g = torch.Generator().manual_seed(1)
    buffer = torch.randint(256, (200_000,), generator=g, dtype=torch.uint8).to(device)
    shapes = [
        (0, 4),
        (4, 1),
        (5, 33),
        (64, 4096),
        (4160, 70_000),
        (80_001, 17),
        (90_000, 32_768),
        (150_016, 48),
        *((160_000 + 40 * i, 29) for i in range(16)),
    ]
    targets: list[Tensor] = [
        torch.full((count + 8,), 7, dtype=torch.uint8, device=device) for _, count in shapes
    ]
    parts = [
        (place, target.data_ptr() + _shift(index), count)
        for index, ((place, count), target) in enumerate(zip(shapes, targets, strict=True))
    ]
    place, address, count = np.array(parts).T
    rows, _ = operation.table(place, address, count)
    operation.scatter(buffer, rows, None if room is None else room[3:])
    for index, ((place, count), target) in enumerate(zip(shapes, targets, strict=True)):
        begin = _shift(index)
        expected = torch.full_like(target, 7)
        expected[begin : begin + count] = buffer[place : place + count]
        if not torch.equal(target, expected):
            return False
    return True


def _shift(index: int) -> int:
    return (index + index // 4) % 5


if __name__ == "__main__":
    operation.scatters = lambda device: True
    torch.set_num_threads(1)
    print(json.dumps(fine()))
