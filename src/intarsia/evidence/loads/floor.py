"""What a load cannot beat: reading its files, and carrying their bytes to the device."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from intarsia.checkpoint import Checkpoint
from intarsia.loading.staging import reading_threads

_BLOCK = 8 << 20
_COPIES = 32


@dataclass(frozen=True, slots=True)
class Floors:
    """Bytes a second of reading the shards with as many threads as a load has, into pinned memory for a GPU,
    and of copies of 8 MiB from there to the device (None on a CPU)."""

    threads: int
    reading: float
    copying: float | None

    def seconds(self, nbytes: int) -> float:
        """The longer of the two: they go on at the same time."""
        return max(nbytes / self.reading, nbytes / self.copying if self.copying else 0.0)


def measure_floors(checkpoint: Checkpoint, device: torch.device) -> Floors:
    """Read every byte of the shards once, warm or cold as they are, and time copies."""
    threads = reading_threads() if device.type == "cuda" else 1
    return Floors(threads, _reading(checkpoint, threads, device), _copying(device))


def _reading(checkpoint: Checkpoint, threads: int, device: torch.device) -> float:
    pinned = device.type == "cuda"
    buffers = [torch.empty(_BLOCK, dtype=torch.uint8, pin_memory=pinned) for _ in range(threads)]
    entries = [entry for entry in checkpoint.tensors.values() if entry.nbytes]
    parts = [
        (entry, first, min(first + _BLOCK, entry.nbytes))
        for entry in entries
        for first in range(0, entry.nbytes, _BLOCK)
    ]

    def read(number: int) -> int:
        done = 0
        with checkpoint.reader() as reader:
            for entry, first, last in parts[number::threads]:
                reader.read_into(entry, buffers[number][: last - first], first, last)
                done += last - first
        return done

    begin = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        total = sum(pool.map(read, range(threads)))
    return total / (time.perf_counter() - begin)


def _copying(device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    source = torch.empty(_BLOCK, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(_BLOCK, dtype=torch.uint8, device=device)
    target.copy_(source, non_blocking=True)
    torch.cuda.synchronize(device)
    begin = time.perf_counter()
    for _ in range(_COPIES):
        target.copy_(source, non_blocking=True)
    torch.cuda.synchronize(device)
    return _COPIES * _BLOCK / (time.perf_counter() - begin)
