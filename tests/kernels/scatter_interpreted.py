"""Scattering bytes in Triton's interpreter: run as a program with TRITON_INTERPRET=1.

Prints true when every byte is in its place and no other has changed.
"""

import json

import torch
from torch import Tensor

from intarsia.kernels import scatter as operation


def fine(device: str = "cpu") -> bool:
    """Parts of any length and alignment, one longer than a program takes."""
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
    ]
    targets: list[Tensor] = [
        torch.full((count + 8,), 7, dtype=torch.uint8, device=device) for _, count in shapes
    ]
    parts = [
        (place, target.data_ptr() + index % 3, count)
        for index, ((place, count), target) in enumerate(zip(shapes, targets, strict=True))
    ]
    operation.scatter(buffer, parts)
    for index, ((place, count), target) in enumerate(zip(shapes, targets, strict=True)):
        begin = index % 3
        expected = torch.full_like(target, 7)
        expected[begin : begin + count] = buffer[place : place + count]
        if not torch.equal(target, expected):
            return False
    return True


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(fine()))
