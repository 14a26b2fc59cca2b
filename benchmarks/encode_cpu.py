"""CPU encoding speed against nvidia-modelopt: same weight, same run, same bytes.

    python benchmarks/encode_cpu.py [--rows 2048] [--columns 4096] [--threads 1] [--rounds 15]

Each round times both encoders one after the other; the ratio is the median of the rounds' ratios. The floor
is np.copyto of the source and of the stored bytes: an encoder that only moves its data. Exits with 1 when the
bytes differ, or when a bfloat16 ratio is below its aim (NVFP4 2.0, MXFP8 5.0).
"""

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np
import torch

from intarsia import formats

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from modelopt.torch.quantization.qtensor import MXFP4QTensor, MXFP8QTensor, NVFP4QTensor

AIMS = {"NVFP4": 2.0, "MXFP8": 5.0, "MXFP4": 0.0}
Peer = Callable[[torch.Tensor], list[torch.Tensor]]


def nvfp4(weight: torch.Tensor) -> list[torch.Tensor]:
    packed, scale, scale_2 = NVFP4QTensor.quantize(weight, 16)
    return [packed._quantized_data, scale, scale_2]


def mxfp8(weight: torch.Tensor) -> list[torch.Tensor]:
    elements, scale = MXFP8QTensor.quantize(weight)
    return [elements._quantized_data, scale]


def mxfp4(weight: torch.Tensor) -> list[torch.Tensor]:
    packed, scale = MXFP4QTensor.quantize(weight, 32)
    return [packed._quantized_data, scale]


PEERS: dict[str, Peer] = {"NVFP4": nvfp4, "MXFP8": mxfp8, "MXFP4": mxfp4}


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def floor(weight: torch.Tensor, stored: formats.Stored) -> float:
    """Seconds to copy the source and the stored bytes once."""
    buffers = [weight, *stored.values()]
    arrays = [tensor.reshape(-1).view(torch.uint8).numpy() for tensor in buffers]
    targets = [np.empty_like(array) for array in arrays]

    def copy() -> None:
        for array, target in zip(arrays, targets, strict=True):
            np.copyto(target, array)

    return min(seconds(copy) for _ in range(7))


def same(ours: formats.Stored, theirs: list[torch.Tensor]) -> bool:
    pairs = zip(ours.values(), theirs, strict=True)
    return all(
        torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))
        for one, other in pairs
    )


def measure(name: str, weight: torch.Tensor, rounds: int) -> bool:
    """Prints one line; whether the bytes are equal and a bfloat16 ratio reaches its aim."""
    number, peer = formats.get(name), PEERS[name]
    equal = same(number.encode(weight), peer(weight))
    times = [(seconds(lambda: number.encode(weight)), seconds(lambda: peer(weight))) for _ in range(rounds)]
    ours, theirs = (statistics.median(column) for column in zip(*times, strict=True))
    ratio = statistics.median(other / one for one, other in times)
    least = floor(weight, number.encode(weight))
    each = 1e9 / weight.numel()
    dtype = str(weight.dtype).removeprefix("torch.")
    aim = AIMS[name] if weight.dtype == torch.bfloat16 else 0.0
    print(
        f"{name:6} {dtype:9} {ours * each:6.2f} ns/element, modelopt {theirs * each:6.2f}, "
        f"floor {least * each:5.2f}; {ratio:5.2f} x modelopt{f' (aim {aim})' if aim else ''}; "
        f"bytes {'equal' if equal else 'DIFFER'}"
    )
    return equal and ratio >= aim


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2048)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    weight = torch.randn(arguments.rows, arguments.columns) * 0.02
    print(f"{arguments.rows} x {arguments.columns}, {arguments.threads} thread(s), torch {torch.__version__}")
    good = [
        measure(name, weight.to(dtype), arguments.rounds)
        for dtype in (torch.bfloat16, torch.float32, torch.float16)
        for name in PEERS
    ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
