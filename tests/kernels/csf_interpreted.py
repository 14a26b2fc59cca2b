"""Compressed scales expanded in Triton's interpreter: run by `interpreting`.

Prints one JSON object: case -> true when it holds.
"""

import json
from collections.abc import Iterator

import torch
from torch import Tensor

from intarsia.formats import csf
from intarsia.formats.csf.block import BLOCK
from intarsia.formats.csf.slab import NVFP4_SLAB
from intarsia.kernels.csf import Batch

SHAPES = ((96, 20), (32, 64), (32, 2))
CODECS = (NVFP4_SLAB.name, BLOCK.name)
ROWS, COLUMNS = 96, 20


def scales(rows: int, columns: int, odd: float, seed: int) -> Tensor:
    """Bytes of which a share lies outside any window of 16."""
    g = torch.Generator().manual_seed(seed)
    near = 0x58 + torch.randint(0, 12, (rows, columns), generator=g, dtype=torch.uint8)
    far = torch.randint(1, 126, (rows, columns), generator=g).to(torch.uint8)
    return torch.where(torch.rand(rows, columns, generator=g) < odd, far, near)


def expanded(codec: str, parts: list[dict[str, Tensor]], stack: Tensor, which: list[int]) -> Tensor:
    last = csf.components(codec)[-1]
    batch = Batch(codec, stack, which, [part[last].numel() for part in parts])
    for index, part in enumerate(parts):
        for name, target in batch.components(index).items():
            target.view(-1).copy_(part[name].view(-1))
    return batch.expand()


def right(codec: str, rows: int, columns: int, device: str = "cpu") -> bool:
    """Three matrices, one without exceptions, go to places of their own and nowhere else."""
    matrices = [scales(rows, columns, odd, seed) for seed, odd in enumerate((0.02, 0.0, 0.4))]
    parts = [
        {name: part.to(device) for name, part in csf.encode(matrix, codec).items()} for matrix in matrices
    ]
    out = torch.full((5, rows, columns), 7, dtype=torch.uint8, device=device)
    fault = expanded(codec, parts, out, [3, 1, 4])
    equal = all(torch.equal(out[place].cpu(), m) for place, m in zip((3, 1, 4), matrices, strict=True))
    return equal and not bool(fault) and bool((out[[0, 2]] == 7).all())


def broken(device: str = "cpu") -> Iterator[tuple[str, bool]]:
    """Components that break a rule, and whether that was noted."""
    for codec, changes in ((NVFP4_SLAB.name, _slab_faults), (BLOCK.name, _block_faults)):
        good = csf.encode(scales(ROWS, COLUMNS, 0.3, 5), codec)
        for name, changed in changes(good):
            part = {key: tensor.to(device) for key, tensor in (good | changed).items()}
            out = torch.empty(1, ROWS, COLUMNS, dtype=torch.uint8, device=device)
            yield f"{codec}: {name}", bool(expanded(codec, [part], out, [0]))


def _slab_faults(good: dict[str, Tensor]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    fixed, words = good[NVFP4_SLAB.fixed], good[NVFP4_SLAB.exceptions].view(torch.int32)

    def listed(changed: Tensor) -> dict[str, Tensor]:
        return {NVFP4_SLAB.exceptions: changed.view(torch.uint32)}

    g = torch.Generator().manual_seed(6)
    for _ in range(20):
        first, second = torch.randperm(len(words), generator=g)[:2].tolist()
        swapped = words.clone()
        swapped[[first, second]] = words[[second, first]]
        yield f"exceptions {first} and {second} swapped", listed(swapped)
    beyond = words.clone()
    beyond[-1] = (words[-1] & ~0xFFFFFF) | ROWS * COLUMNS
    yield "an exception beyond the matrix", listed(beyond)
    twice = words.clone()
    twice[3] = words[4]
    yield "an exception twice", listed(twice)
    high = fixed.clone()
    high[1, 3] = 241
    yield "a base of 241", {NVFP4_SLAB.fixed: high}


def _block_faults(good: dict[str, Tensor]) -> Iterator[tuple[str, dict[str, Tensor]]]:
    base, _, count, position, value = BLOCK.components
    high = good[base].clone()
    high[2, 1] = 241
    yield "a base of 241", {base: high}
    for block in ((0, 0), (1, 3), (2, 9)):
        first = int(good[count].view(-1)[: block[0] * (COLUMNS // 2) + block[1]].sum())
        swapped = good[position].clone()
        swapped[[first, first + 1]] = good[position][[first + 1, first]]
        yield f"escapes {first} and {first + 1} swapped", {position: swapped}
    beyond = good[position].clone()
    beyond[-1] = 64
    yield "a position of 64", {position: beyond}
    for change in (1, -1):
        other = good[count].clone()
        other[1, 1] += change
        yield f"a count {change:+} off", {count: other}
    yield "an escape more", {name: torch.cat([good[name], good[name][-1:]]) for name in (position, value)}


def main() -> None:
    torch.set_num_threads(1)
    held = {
        f"{codec} {rows} x {columns}": right(codec, rows, columns)
        for codec in CODECS
        for rows, columns in SHAPES
    }
    print(json.dumps(held | dict(broken())))


if __name__ == "__main__":
    main()
