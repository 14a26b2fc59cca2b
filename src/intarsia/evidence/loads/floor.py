"""What a load cannot beat: reading its files, and carrying their bytes to the device."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from intarsia.checkpoint import Checkpoint
from intarsia.checkpoint.reader import LINE, staging_view
from intarsia.loading.ring import BLOCK_BYTES
from intarsia.loading.staging import reading_threads

_COPIES = 32


@dataclass(frozen=True, slots=True)
class Floors:
    """Bytes a second of reading the shards with as many threads as a load has, into pinned memory for a GPU,
    and of copies of 16 MiB from there to the device (None on a CPU)."""

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
    buffers = [torch.empty(BLOCK_BYTES + LINE, dtype=torch.uint8, pin_memory=pinned) for _ in range(threads)]
    parts = [
        (shard.name, first, min(first + BLOCK_BYTES, shard.size))
        for shard in checkpoint.shards
        for first in range(0, shard.size, BLOCK_BYTES)
    ]

    def read(number: int) -> int:
        done = 0
        with checkpoint.reader() as reader:
            for shard, first, last in parts[number::threads]:
                view = staging_view(buffers[number], first, last)
                reader.read_range(shard, first, last, view)
                done += last - first
        return done

    begin = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        total = sum(pool.map(read, range(threads)))
    return total / (time.perf_counter() - begin)


def _copying(device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    source = torch.empty(BLOCK_BYTES, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(BLOCK_BYTES, dtype=torch.uint8, device=device)
    target.copy_(source, non_blocking=True)
    torch.cuda.synchronize(device)
    begin = time.perf_counter()
    for _ in range(_COPIES):
        target.copy_(source, non_blocking=True)
    torch.cuda.synchronize(device)
    return _COPIES * BLOCK_BYTES / (time.perf_counter() - begin)
