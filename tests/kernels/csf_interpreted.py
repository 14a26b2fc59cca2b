"""Compressed scales expanded in Triton's interpreter: run as a program with TRITON_INTERPRET=1.

Prints one JSON object: case -> true when it holds.
"""

import json
from collections.abc import Iterator

import torch
from torch import Tensor

from intarsia.formats import csf
from intarsia.formats.csf.slab import NVFP4_SLAB
from intarsia.kernels.csf import Batch

SHAPES = ((48, 20), (32, 64), (16, 2))


def scales(rows: int, columns: int, odd: float, seed: int) -> Tensor:
    """Bytes of which a share lies outside any window of 16."""
    g = torch.Generator().manual_seed(seed)
    near = 0x58 + torch.randint(0, 12, (rows, columns), generator=g, dtype=torch.uint8)
    far = torch.randint(1, 126, (rows, columns), generator=g).to(torch.uint8)
    return torch.where(torch.rand(rows, columns, generator=g) < odd, far, near)


def expanded(parts: list[dict[str, Tensor]], outs: list[Tensor]) -> Tensor:
    batch = Batch(outs, [part[NVFP4_SLAB.exceptions].numel() for part in parts])
    for index, part in enumerate(parts):
        for name, target in batch.components(index).items():
            target.view(-1).copy_(part[name].view(-1))
    return batch.expand()


def right(rows: int, columns: int, device: str = "cpu") -> bool:
    """Three matrices, one without exceptions, go to places of their own and nowhere else."""
    matrices = [scales(rows, columns, odd, seed) for seed, odd in enumerate((0.02, 0.0, 0.4))]
    parts = [
        {name: part.to(device) for name, part in csf.encode(matrix, NVFP4_SLAB.name).items()}
        for matrix in matrices
    ]
    out = torch.full((5, rows, columns), 7, dtype=torch.uint8, device=device)
    fault = expanded(parts, [out[3], out[1], out[4]])
    equal = all(torch.equal(out[place].cpu(), m) for place, m in zip((3, 1, 4), matrices, strict=True))
    return equal and not bool(fault) and bool((out[[0, 2]] == 7).all())


def broken(device: str = "cpu") -> Iterator[tuple[str, bool]]:
    """Components that break a rule, and whether that was noted."""
    good = csf.encode(scales(48, 20, 0.3, 5), NVFP4_SLAB.name)
    fixed, words = good[NVFP4_SLAB.fixed], good[NVFP4_SLAB.exceptions].view(torch.int32)

    def noted(fixed: Tensor, words: Tensor) -> bool:
        part = {NVFP4_SLAB.fixed: fixed, NVFP4_SLAB.exceptions: words.view(torch.uint32)}
        out = torch.empty(48, 20, dtype=torch.uint8, device=device)
        return bool(expanded([{name: tensor.to(device) for name, tensor in part.items()}], [out]))

    g = torch.Generator().manual_seed(6)
    for _ in range(20):
        first, second = torch.randperm(len(words), generator=g)[:2].tolist()
        swapped = words.clone()
        swapped[[first, second]] = words[[second, first]]
        yield f"exceptions {first} and {second} swapped", noted(fixed, swapped)
    beyond = words.clone()
    beyond[-1] = (words[-1] & ~0xFFFFFF) | 48 * 20
    yield "an exception beyond the matrix", noted(fixed, beyond)
    twice = words.clone()
    twice[3] = words[4]
    yield "an exception twice", noted(fixed, twice)
    high = fixed.clone()
    high[1, 3] = 241
    yield "a base of 241", noted(high, words)


def main() -> None:
    torch.set_num_threads(1)
    print(
        json.dumps({f"{rows} x {columns}": right(rows, columns) for rows, columns in SHAPES} | dict(broken()))
    )


if __name__ == "__main__":
    main()
