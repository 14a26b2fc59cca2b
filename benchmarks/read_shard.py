"""Reading a warm shard into a reused buffer, against copying from a warm mapping into the same buffer.

    python benchmarks/read_shard.py [--gib 2] [--rounds 7] [--folder /tmp]

Writes one safetensors file of that size to a temporary folder (removed afterwards), reads it once so that it
is in the page cache, and then alternates between the two ways in one process. The floor is `np.copyto` from a
memory mapping whose pages are already present; the reader has to reach 0.8 of it. Both are bound by one core,
so the ratio is taken from processor time, round by round, which other work on the machine disturbs least;
elapsed time stands beside it.

Three placements are measured: data that begins at a multiple of 64 bytes, as this project writes it; at 8
bytes beyond one, as other writers leave it, where copies into an aligned buffer are slower and the kernel's
more so; and the same with `staging_view`, which places the bytes in the buffer as they lie in the file.
"""

import argparse
import json
import mmap
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from intarsia.checkpoint import open_checkpoint
from intarsia.checkpoint.reader import staging_view

BUFFER = 16 << 20
TARGET = 0.8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", default=None, help="where to put the file")
    arguments = parser.parse_args()
    size = int(arguments.gib * 2**30)
    print(
        f"file {size / 2**30:.2f} GiB in the page cache, buffer {BUFFER >> 20} MiB, {arguments.rounds} rounds"
    )
    for offset in (0, 8):
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            write(Path(folder), size, offset)
            compare(Path(folder), f"data at a multiple of 64 bytes + {offset}", arguments.rounds)
            if offset:
                compare(Path(folder), "the same through staging_view", arguments.rounds, staged=True)


def write(folder: Path, size: int, offset: int) -> None:
    """A shard whose one tensor begins `offset` bytes behind a multiple of 64."""
    header = {"data": {"dtype": "I32", "shape": [size // 4], "data_offsets": [0, size // 4 * 4]}}
    text = json.dumps(header).encode()
    text += b" " * ((offset - 8 - len(text)) % 64)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for first in range(0, size // 4, BUFFER):
            file.write(np.arange(first, min(first + BUFFER, size // 4), dtype=np.int32).data)


def compare(folder: Path, title: str, rounds: int, *, staged: bool = False) -> None:
    """Measure both ways on the shard in `folder`, and print the figures."""
    checkpoint = open_checkpoint(folder)
    entry = checkpoint.entry("data")
    buffer = torch.zeros(BUFFER + 63, dtype=torch.uint8)
    whole = staging_view(buffer, entry.begin, entry.begin + BUFFER) if staged else buffer[:BUFFER]
    target = whole.numpy()
    with checkpoint.reader() as reader, open(checkpoint.shards[0].path, "rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        source = np.frombuffer(mapping, dtype=np.uint8, offset=entry.begin)

        def read() -> None:
            for begin in range(0, entry.nbytes, BUFFER):
                end = min(begin + BUFFER, entry.nbytes)
                reader.read_into(entry, whole[: end - begin], begin, end)

        def copy() -> None:
            for begin in range(0, entry.nbytes, BUFFER):
                piece = source[begin : begin + BUFFER]
                np.copyto(target[: len(piece)], piece)

        copy()  # maps every page, so that no round pays for faults
        read()
        rounds_of = [(speed(read, entry.nbytes), speed(copy, entry.nbytes)) for _ in range(rounds)]
    print(title)
    for way, column in zip(("reader", "np.copyto"), zip(*rounds_of, strict=True), strict=True):
        cpu, wall = (statistics.median(values) for values in zip(*column, strict=True))
        print(f"  {way:10} {cpu:6.2f} GB a CPU second, {wall:6.2f} GB/s elapsed (medians)")
    for clock, kind in (("CPU", 0), ("elapsed", 1)):
        ratio = statistics.median(reading[kind] / copying[kind] for reading, copying in rounds_of)
        print(f"  ratio by {clock:8} {ratio:6.3f} (median of the rounds; {TARGET} wanted)")


def speed(action: Callable[[], None], size: int) -> tuple[float, float]:
    """Gigabytes a second of processor time and of elapsed time."""
    start, cpu = time.perf_counter(), time.process_time()
    action()
    return size / (time.process_time() - cpu) / 1e9, size / (time.perf_counter() - start) / 1e9


if __name__ == "__main__":
    main()
