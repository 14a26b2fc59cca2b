"""Decoding compressed block scales on one core, in gigabytes of scale bytes a second.

    python benchmarks/csf_decode.py [--rounds 300]

The matrices have the shapes of the real model's experts (2048 x 256 and 4096 x 128) and, per codec, about 0.3
% escapes, which is what published checkpoints have. The floor is np.copyto of as many bytes. Exits with 1
when a codec decodes below 1 GB/s.
"""

import argparse
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from intarsia.formats import csf

AIM = 1.0
SPREAD = {"nvfp4_slab": 2.6, "mxfp4_slab": 0.0, "csf_32x2_v1": 2.6}


def scales(rows: int, columns: int, codec: str) -> torch.Tensor:
    """Scale bytes with a level a row, a normal spread, and 0.3 % outliers."""
    torch.manual_seed(0)
    level = 90 + torch.randn(rows, 1) * 2
    noise = torch.randn(rows, columns) * SPREAD[codec]
    matrix = (level.round() + noise).round()
    outliers = torch.rand(rows, columns) < 0.003
    return torch.where(outliers, torch.randint(20, 120, (rows, columns)).float(), matrix).to(torch.uint8)


def fastest(work: Callable[[], object], rounds: int) -> float:
    """The least seconds of many runs: what the core does when nothing else has it."""
    best = float("inf")
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def measure(rows: int, columns: int, codec: str, rounds: int) -> bool:
    """Prints one line; whether decoding reaches the aim and gives the scales back."""
    matrix = scales(rows, columns, codec)
    components = csf.encode(matrix, codec)
    out, size = torch.empty_like(matrix), matrix.numel()
    decode = size / fastest(lambda: csf.decode_into(components, out, codec), rounds) / 1e9
    encode = size / fastest(lambda: csf.encode(matrix, codec), max(3, rounds // 10)) / 1e9
    source, target = matrix.numpy(), np.empty_like(matrix.numpy())
    floor = size / fastest(lambda: np.copyto(target, source), rounds) / 1e9
    stored = sum(tensor.numel() * tensor.element_size() for tensor in components.values())
    exact = torch.equal(out, matrix)
    print(
        f"{codec:12} {rows} x {columns}: decode {decode:5.2f} GB/s (aim {AIM}), encode {encode:5.2f} GB/s, "
        f"copy {floor:5.1f} GB/s; {stored / size:.1%} of the raw bytes; {'exact' if exact else 'WRONG'}"
    )
    return exact and decode >= AIM


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=300)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    print(f"one thread, torch {torch.__version__}")
    shapes = ((2048, 256), (4096, 128))
    good = [measure(*shape, codec, rounds) for codec in csf.CODECS for shape in shapes]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
